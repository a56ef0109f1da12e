// The functions of oneDNN's C interface that are looked up in the library, without their prefix.
#pragma once

#define BROACH_ONEDNN_FUNCTIONS(X)                      \
  X(version)                                            \
  X(engine_create)                                      \
  X(stream_create)                                      \
  X(stream_destroy)                                     \
  X(memory_create)                                      \
  X(memory_destroy)                                     \
  X(memory_set_data_handle)                             \
  X(memory_desc_create_with_strides)                    \
  X(memory_desc_create_with_tag)                        \
  X(memory_desc_clone)                                  \
  X(memory_desc_destroy)                                \
  X(memory_desc_equal)                                  \
  X(memory_desc_get_size)                               \
  X(memory_desc_query)                                  \
  X(post_ops_create)                                    \
  X(post_ops_destroy)                                   \
  X(post_ops_append_eltwise)                            \
  X(post_ops_append_binary)                             \
  X(post_ops_append_sum)                                \
  X(primitive_attr_create)                              \
  X(primitive_attr_destroy)                             \
  X(primitive_attr_set_scratchpad_mode)                 \
  X(primitive_attr_set_fpmath_mode)                     \
  X(primitive_attr_set_post_ops)                        \
  X(matmul_primitive_desc_create)                       \
  X(convolution_forward_primitive_desc_create)          \
  X(convolution_backward_weights_primitive_desc_create) \
  X(deconvolution_forward_primitive_desc_create)        \
  X(reorder_primitive_desc_create)                      \
  X(primitive_desc_query) X(primitive_desc_query_md) X(primitive_desc_destroy) X(primitive_create) X(primitive_destroy) X(primitive_execute)
