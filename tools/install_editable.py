"""Makes `import broach` and torch.compile(backend="broach") work from this checkout with the interpreter that runs this.

Writes the metadata with the entry points of pyproject.toml beside the built extension, where a path entry finds it, and a
.pth file with the two folders into site-packages.
"""

import argparse
import sysconfig
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
BUILT = ROOT / "build" / "python"


def write_if_changed(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def write_metadata(project: dict) -> None:
    folder = BUILT / f"{project['name']}-{project['version']}.dist-info"
    write_if_changed(
        folder / "METADATA",
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\nSummary: {project['description']}\n",
    )
    groups = (
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
        for group, entries in project["entry-points"].items()
    )
    write_if_changed(folder / "entry_points.txt", "\n".join(groups))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-pth", action="store_true", help="leave site-packages alone; PYTHONPATH names the folders")
    options = parser.parse_args()
    write_metadata(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])
    if options.no_pth:
        print(f"broach: PYTHONPATH={ROOT / 'python'}:{BUILT}")
    else:
        site = Path(sysconfig.get_path("platlib"))
        write_if_changed(site / "broach.pth", f"{ROOT / 'python'}\n{BUILT}\n")


if __name__ == "__main__":
    main()
