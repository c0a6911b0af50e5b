#include "model/hf/quantized.h"

#include "core/files/json_file.h"
#include "core/files/model_files.h"
#include "core/size.h"
#include "model/hf/family.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CONFIG_BYTES = 1 << 24, CODE_TYPES = 2, READ_ELEMS = 4096, MXFP4_GROUP_BYTES = SW_MXFP4_BLOCK_ELEMS / 2 };
static_assert(READ_ELEMS % SW_MXFP4_BLOCK_ELEMS == 0, "a read ends with whole groups");

static bool is_text(const json_t *object, const char *name, const char *text) {
    const char *value = json_string_value(json_object_get(object, name));
    return value != NULL && strcmp(value, text) == 0;
}

static bool is_absent(const json_t *object, const char *name) {
    return sw_config_field_of(object, name) == NULL;
}

static sw_status refuse_kind(const char *origin, const char *field, const json_t *value) {
    const char *method = json_string_value(json_object_get(value, "quant_method"));
    const char *format = json_string_value(json_object_get(value, "format"));
    return sw_fail(SW_ERR_UNSUPPORTED,
                   "%s says by '%s' that the weights are quantized (%.40s%s%.40s), and of quantized weights only fp8 "
                   "and mxfp4 can be read: give the original model, or convert it with transformers' dequantize() and "
                   "save_pretrained()",
                   origin, field, method != NULL ? method : "no quant_method is named", format != NULL ? ", " : "",
                   format != NULL ? format : "");
}

/* Reads "weight_block_size": [rows, columns]. */
static sw_status read_block(const json_t *value, const char *origin, struct sw_quantization *out) {
    const json_t *block = sw_config_field_of(value, "weight_block_size");
    const json_t *rows = json_array_get(block, 0), *cols = json_array_get(block, 1);
    if (block == NULL)
        return SW_OK;
    out->block_rows = json_is_integer(rows) ? json_integer_value(rows) : 0;
    out->block_cols = json_is_integer(cols) ? json_integer_value(cols) : 0;
    if (json_array_size(block) == 2 && out->block_rows > 0 && out->block_cols > 0 && out->block_rows <= INT_MAX &&
        out->block_cols <= INT_MAX)
        return SW_OK;
    char shown[SW_SHOWN_CHARS];
    return sw_fail(SW_ERR_ARG, "%s: 'weight_block_size' is %s; it must be [rows, columns]", origin,
                   sw_config_show(block, shown));
}

sw_status sw_quantization_read(const json_t *root, const char *origin, struct sw_quantization *out) {
    static const char *const fields[] = {"quantization_config", "compression_config", "quantization"};
    *out = (struct sw_quantization){0};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const json_t *value = sw_config_field_of(root, fields[i]);
        if (value == NULL || (json_is_object(value) && json_object_size(value) == 0) ||
            (json_is_array(value) && json_array_size(value) == 0))
            continue;
        const bool e4m3 = is_absent(value, "fmt") || is_text(value, "fmt", "e4m3");
        const bool fp8 = i == 0 && is_text(value, "quant_method", "fp8") && e4m3;
        const bool compressed = i == 0 && is_text(value, "quant_method", "compressed-tensors") &&
                                is_text(value, "format", "float-quantized");
        const bool mxfp4 = i == 0 && is_text(value, "quant_method", "mxfp4");
        if (!fp8 && !compressed && !mxfp4)
            return refuse_kind(origin, fields[i], value);
        out->format = mxfp4 ? SW_BASE_MXFP4 : SW_BASE_FP8;
        if (fp8)
            SW_TRY(read_block(value, origin, out));
    }
    return SW_OK;
}

sw_status sw_quantization_load(const char *folder, struct sw_quantization *out) {
    char path[PATH_MAX];
    bool is_there;
    json_t *root;
    *out = (struct sw_quantization){0};
    SW_TRY(sw_model_file_find(folder, SW_MODEL_CONFIG, path, &is_there));
    if (!is_there)
        return SW_OK;
    SW_TRY(sw_json_read_file(path, MOST_CONFIG_BYTES, SW_ERR_ARG, &root));
    const sw_status status = sw_quantization_read(root, path, out);
    json_decref(root);
    return status;
}

const char *const *sw_quantization_endings(sw_base_format format) {
    static const char *const none[] = {NULL}, *const fp8[] = {"_scale_inv", "_scale", NULL};
    static const char *const mxfp4[] = {"_blocks", "_scales", NULL};
    if (format == SW_BASE_FP8)
        return fp8;
    return format == SW_BASE_MXFP4 ? mxfp4 : none;
}

/* Tells whether bytes of a tensor are exponents (E8M0). PyTorch keeps them as U8 too. */
static bool is_exponents(const struct sw_safetensor *tensor) {
    return strcmp(tensor->type_name, "U8") == 0 || strcmp(tensor->type_name, "F8_E8M0") == 0;
}

static bool has_shape(const struct sw_safetensor *tensor, int dims, const int64_t *dim) {
    bool same = tensor->dims == dims;
    for (int d = 0; same && d < dims; d++)
        same = tensor->dim[d] == dim[d];
    return same;
}

static sw_status refuse_type(const char *folder, const struct sw_safetensor *tensor, const char *wanted) {
    return sw_fail(SW_ERR_ARG, "the tensor '%s' in %s has the type %s; by config.json it is %s", tensor->name, folder,
                   tensor->type_name, wanted);
}

static sw_status refuse_shape(const char *folder, const struct sw_safetensor *tensor, int dims, const int64_t *dim) {
    char stored[SW_SHAPE_CHARS], wanted[SW_SHAPE_CHARS];
    return sw_fail(SW_ERR_ARG, "the tensor '%s' in %s has the shape %s; by config.json it is %s", tensor->name, folder,
                   sw_shape_text(tensor->dims, tensor->dim, stored), sw_shape_text(dims, dim, wanted));
}

/* Sets the blocks of a matrix in fp8 by the shape of its scales. */
static sw_status set_blocks(const struct sw_quantization *quantization, const char *folder,
                            const struct sw_tensor *tensor, struct sw_stored_tensor *out) {
    const struct sw_safetensor *scales = out->scales;
    const int64_t rows = tensor->dim[0], cols = tensor->dim[1];
    const int64_t of_rows[] = {rows, 1};
    out->block_rows = rows;
    out->block_cols = cols;
    if (quantization->block_rows > 0) {
        out->block_rows = quantization->block_rows;
        out->block_cols = quantization->block_cols;
    } else if (scales->elems == rows && rows > 1 && (scales->dims == 1 || has_shape(scales, 2, of_rows)))
        out->block_rows = 1;
    out->grid_cols = sw_div_up(cols, out->block_cols);
    const int64_t grid[] = {sw_div_up(rows, out->block_rows), out->grid_cols};
    if (quantization->block_rows == 0 && scales->elems == grid[0] * grid[1])
        return SW_OK;
    return has_shape(scales, 2, grid) ? SW_OK : refuse_shape(folder, scales, 2, grid);
}

static sw_status read_scales(struct sw_safetensors *tensors, const char *folder, struct sw_stored_tensor *out) {
    const struct sw_safetensor *scales = out->scales;
    if (!scales->supported && !is_exponents(scales))
        return refuse_type(folder, scales, "F32, BF16, F16 or F8_E8M0");
    out->scale = malloc((size_t)scales->elems * sizeof *out->scale);
    uint8_t *bytes = malloc((size_t)scales->elems);
    sw_status status = SW_OK;
    if (out->scale == NULL || bytes == NULL)
        status = sw_fail(SW_ERR_NOMEM, "no memory for the scales of %s", out->values->name);
    else if (scales->supported)
        status = sw_safetensors_read_f32(tensors, scales, 0, scales->elems, out->scale);
    else
        status = sw_safetensors_read_bytes(tensors, scales, 0, scales->elems, bytes);
    for (int64_t i = 0; status == SW_OK && i < scales->elems; i++) {
        if (!scales->supported)
            out->scale[i] = sw_mxfp4_scale(bytes[i]);
        if (!isfinite(out->scale[i]))
            status = sw_fail(SW_ERR_ARG, "the tensor '%s' in %s holds a scale that is not finite at element %lld",
                             scales->name, folder, (long long)i);
    }
    free(bytes);
    return status;
}

static sw_status open_fp8(const struct sw_quantization *quantization, struct sw_safetensors *tensors,
                          const char *folder, const struct sw_tensor *tensor, struct sw_stored_tensor *out) {
    if (strcmp(out->values->type_name, "F8_E4M3") != 0)
        return refuse_type(folder, out->values, "F8_E4M3, as scales lie beside it");
    if (tensor->dims != 2 || !has_shape(out->values, tensor->dims, tensor->dim))
        return refuse_shape(folder, out->values, tensor->dims, tensor->dim);
    SW_TRY(set_blocks(quantization, folder, tensor, out));
    return read_scales(tensors, folder, out);
}

static sw_status open_mxfp4(const char *folder, const struct sw_tensor *tensor, struct sw_stored_tensor *out) {
    int64_t dim[SW_TENSOR_MAX_DIMS + 1];
    const int dims = tensor->dims;
    memcpy(dim, tensor->dim, sizeof tensor->dim);
    if (out->rows > 0)
        dim[1] = out->rows;
    if (strcmp(out->values->type_name, "U8") != 0)
        return refuse_type(folder, out->values, "U8");
    if (!is_exponents(out->scales))
        return refuse_type(folder, out->scales, "U8");
    if (out->cols % SW_MXFP4_BLOCK_ELEMS != 0)
        return sw_fail(SW_ERR_ARG,
                       "the tensor '%s' in %s stands for rows of %lld weights by config.json, and mxfp4 "
                       "has groups of %d",
                       out->values->name, folder, (long long)out->cols, SW_MXFP4_BLOCK_ELEMS);
    dim[dims - 1] = out->cols / SW_MXFP4_BLOCK_ELEMS;
    dim[dims] = MXFP4_GROUP_BYTES;
    if (!has_shape(out->values, dims + 1, dim))
        return refuse_shape(folder, out->values, dims + 1, dim);
    return has_shape(out->scales, dims, dim) ? SW_OK : refuse_shape(folder, out->scales, dims, dim);
}

sw_status sw_stored_tensor_open(const struct sw_quantization *quantization, struct sw_safetensors *tensors,
                                const char *folder, const struct sw_tensor *tensor, struct sw_stored_tensor *out) {
    assert(out->values != NULL && out->scales != NULL);
    out->format = quantization->format;
    const bool transposed = out->format == SW_BASE_MXFP4 && tensor->in_first;
    out->cols = tensor->dim[transposed ? 1 : tensor->dims - 1];
    out->rows = transposed ? tensor->dim[2] : 0;
    return out->format == SW_BASE_FP8 ? open_fp8(quantization, tensors, folder, tensor, out)
                                      : open_mxfp4(folder, tensor, out);
}

void sw_stored_tensor_release(struct sw_stored_tensor *stored) {
    free(stored->scale);
    *stored = (struct sw_stored_tensor){0};
}

static float scale_at(const struct sw_stored_tensor *stored, int64_t elem) {
    const int64_t row = elem / stored->cols, col = elem % stored->cols;
    return stored->scale[row / stored->block_rows * stored->grid_cols + col / stored->block_cols];
}

/* Reads at most READ_ELEMS elements. */
static sw_status read_fp8(struct sw_safetensors *tensors, const struct sw_stored_tensor *stored, int64_t first,
                          int64_t count, float *out) {
    uint8_t codes[READ_ELEMS];
    SW_TRY(sw_safetensors_read_bytes(tensors, stored->values, first, count, codes));
    for (int64_t i = 0, end; i < count; i = end) {
        const int64_t col = (first + i) % stored->cols, left = stored->block_cols - col % stored->block_cols;
        const float scale = scale_at(stored, first + i);
        for (end = sw_min_i64(i + sw_min_i64(left, stored->cols - col), count); i < end; i++)
            out[i] = sw_fp8_value(SW_FP8_E4M3, codes[i]) * scale;
    }
    return SW_OK;
}

static sw_status read_mxfp4(struct sw_safetensors *tensors, const struct sw_stored_tensor *stored, int64_t first,
                            int64_t count, float *out) {
    uint8_t codes[READ_ELEMS / 2 + 1], scales[READ_ELEMS / SW_MXFP4_BLOCK_ELEMS + 1];
    const int64_t byte = first / 2, group = first / SW_MXFP4_BLOCK_ELEMS, end = first + count;
    SW_TRY(sw_safetensors_read_bytes(tensors, stored->values, byte, sw_div_up(end, 2) - byte, codes));
    SW_TRY(sw_safetensors_read_bytes(tensors, stored->scales, group, sw_div_up(end, SW_MXFP4_BLOCK_ELEMS) - group,
                                     scales));
    for (int64_t elem = first; elem < end; elem++)
        out[elem - first] = sw_mxfp4_level(codes[elem / 2 - byte] >> elem % 2 * 4 & 15) *
                            sw_mxfp4_scale(scales[elem / SW_MXFP4_BLOCK_ELEMS - group]);
    return SW_OK;
}

struct sw_transposed_expert {
    pthread_mutex_t lock;
    const struct sw_safetensor *values; /* the tensor and the number of the expert whose matrix `value` has */
    int64_t number, capacity;           /* capacity: elements that `value` has room for */
    float *value;
};

sw_status sw_transposed_expert_create(struct sw_transposed_expert **out) {
    *out = calloc(1, sizeof **out);
    if (*out == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read experts");
    pthread_mutex_init(&(*out)->lock, NULL);
    return SW_OK;
}

void sw_transposed_expert_destroy(struct sw_transposed_expert *expert) {
    if (expert == NULL)
        return;
    pthread_mutex_destroy(&expert->lock);
    free(expert->value);
    free(expert);
}

static sw_status make_room(struct sw_transposed_expert *expert, int64_t elems) {
    if (expert->capacity >= elems)
        return SW_OK;
    float *grown = realloc(expert->value, (size_t)elems * sizeof *grown);
    if (grown == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the matrix of an expert");
    expert->value = grown;
    expert->capacity = elems;
    return SW_OK;
}

/* Reads the matrix of an expert, and transposes it. */
static sw_status read_expert(struct sw_safetensors *tensors, const struct sw_stored_tensor *stored, int64_t number,
                             struct sw_transposed_expert *expert) {
    const int64_t rows = stored->rows, cols = stored->cols, first = number * rows * cols;
    float values[READ_ELEMS];
    expert->values = NULL;
    SW_TRY(make_room(expert, rows * cols));
    for (int64_t done = 0, now; done < rows * cols; done += now) {
        now = sw_min_i64(rows * cols - done, READ_ELEMS);
        SW_TRY(read_mxfp4(tensors, stored, first + done, now, values));
        for (int64_t i = 0; i < now; i++)
            expert->value[(done + i) % cols * rows + (done + i) / cols] = values[i];
    }
    expert->values = stored->values;
    expert->number = number;
    return SW_OK;
}

static sw_status read_transposed(struct sw_safetensors *tensors, const struct sw_stored_tensor *stored, int64_t first,
                                 int64_t count, float *out) {
    struct sw_transposed_expert *expert = stored->transposed;
    const int64_t elems = stored->rows * stored->cols;
    sw_status status = SW_OK;
    pthread_mutex_lock(&expert->lock);
    for (int64_t done = 0, now; status == SW_OK && done < count; done += now) {
        const int64_t number = (first + done) / elems, within = (first + done) % elems;
        now = sw_min_i64(count - done, elems - within);
        if (expert->values != stored->values || expert->number != number)
            status = read_expert(tensors, stored, number, expert);
        if (status == SW_OK)
            memcpy(out + done, expert->value + within, (size_t)now * sizeof *out);
    }
    pthread_mutex_unlock(&expert->lock);
    return status;
}

sw_status sw_stored_tensor_read(struct sw_safetensors *tensors, const struct sw_stored_tensor *stored, int64_t first,
                                int64_t count, float *out) {
    if (stored->format == SW_BASE_TYPED)
        return sw_safetensors_read_f32(tensors, stored->values, stored->first + first, count, out);
    if (stored->rows > 0)
        return read_transposed(tensors, stored, first, count, out);
    for (int64_t done = 0, now; done < count; done += now) {
        now = sw_min_i64(count - done, READ_ELEMS);
        SW_TRY((stored->format == SW_BASE_FP8 ? read_fp8 : read_mxfp4)(tensors, stored, first + done, now, out + done));
    }
    return SW_OK;
}

sw_status sw_stored_tensor_take(struct sw_safetensors *tensors, const struct sw_stored_tensor *stored, int64_t first,
                                int64_t count, int64_t at, void *record) {
    const int64_t neighbours = sw_base_stored_elems(stored->format);
    struct sw_fp8_record *fp8 = record;
    struct sw_mxfp4_record *mxfp4 = record;
    assert(first % neighbours == 0 && count % neighbours == 0 && at % neighbours == 0);
    if (stored->format == SW_BASE_MXFP4) {
        SW_TRY(sw_safetensors_read_bytes(tensors, stored->values, first / 2, count / 2, mxfp4->codes + at / 2));
        return sw_safetensors_read_bytes(tensors, stored->scales, first / neighbours, count / neighbours,
                                         mxfp4->scales + at / neighbours);
    }
    SW_TRY(sw_safetensors_read_bytes(tensors, stored->values, first, count, fp8->codes + at));
    for (int64_t i = 0; i < count; i += neighbours)
        fp8->scales[(at + i) / neighbours] = scale_at(stored, first + i);
    return SW_OK;
}

sw_status sw_stored_tensor_announce(struct sw_safetensors *tensors, const struct sw_stored_tensor *stored,
                                    int64_t first, int64_t count, int64_t position, bool *out_taken) {
    const int64_t end = first + count;
    *out_taken = true;
    if (stored->rows > 0) /* read on demand, a whole matrix at a time */
        return SW_OK;
    if (stored->format != SW_BASE_MXFP4)
        return sw_safetensors_announce(tensors, stored->values, stored->first + first, count, position, out_taken);
    const int64_t byte = first / 2, group = first / SW_MXFP4_BLOCK_ELEMS;
    SW_TRY(sw_safetensors_announce(tensors, stored->values, byte, sw_div_up(end, 2) - byte, position, out_taken));
    if (!*out_taken)
        return SW_OK;
    return sw_safetensors_announce(tensors, stored->scales, group, sw_div_up(end, SW_MXFP4_BLOCK_ELEMS) - group,
                                   position, out_taken);
}

int64_t sw_stored_tensor_offset(const struct sw_stored_tensor *stored, int64_t elem) {
    const int64_t expert = stored->rows > 0 ? elem / (stored->rows * stored->cols) : 0;
    const int64_t within = elem - expert * stored->rows * stored->cols;
    if (stored->rows > 0)
        elem += within % stored->rows * stored->cols + within / stored->rows - within;
    const int64_t at = stored->format == SW_BASE_MXFP4 ? elem / 2 : stored->first + elem;
    return stored->values->offset_bytes + at * stored->values->elem_bytes;
}
