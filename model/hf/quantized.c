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
/* Rows that are read and transposed at once, and matrices that are kept: neighbours, as threads read around the end of
 * one. */
enum { STRIP_ROWS = 64, KEPT_MATRICES = 2 };
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

/* Both arrays have a row for each pair of columns, or each group, of the file's matrix [rows, columns], and a byte for
 * each of its rows. */
struct matrix {
    const struct sw_safetensor *values; /* the tensor and the number of the expert; NULL: the matrix is none */
    int64_t number, capacity;           /* capacity: elements that the arrays have room for */
    uint8_t *codes;                     /* [columns / 2, rows]: the even column's code is in the lower half */
    uint8_t *scales;                    /* [columns / SW_MXFP4_BLOCK_ELEMS, rows] */
    bool loading;                       /* a thread reads it without the lock */
    int users;                          /* threads that take values from it */
    int64_t used;                       /* when it was taken last */
};

struct sw_transposed_experts {
    pthread_mutex_t lock; /* for the members below, and not for what a matrix points to */
    pthread_cond_t changed;
    struct matrix matrix[KEPT_MATRICES];
    int64_t takes;
    float level[SW_MXFP4_LEVELS];
};

sw_status sw_transposed_experts_create(struct sw_transposed_experts **out) {
    *out = calloc(1, sizeof **out);
    if (*out == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read experts");
    pthread_mutex_init(&(*out)->lock, NULL);
    pthread_cond_init(&(*out)->changed, NULL);
    for (int code = 0; code < SW_MXFP4_LEVELS; code++)
        (*out)->level[code] = sw_mxfp4_level(code);
    return SW_OK;
}

static void drop_arrays(struct matrix *matrix) {
    free(matrix->codes);
    free(matrix->scales);
    matrix->codes = matrix->scales = NULL;
    matrix->capacity = 0;
}

void sw_transposed_experts_destroy(struct sw_transposed_experts *experts) {
    if (experts == NULL)
        return;
    for (int m = 0; m < KEPT_MATRICES; m++)
        drop_arrays(&experts->matrix[m]);
    pthread_mutex_destroy(&experts->lock);
    pthread_cond_destroy(&experts->changed);
    free(experts);
}

static sw_status make_room(struct matrix *matrix, int64_t elems) {
    if (matrix->capacity >= elems)
        return SW_OK;
    drop_arrays(matrix);
    matrix->codes = malloc((size_t)elems / 2);
    matrix->scales = malloc((size_t)elems / SW_MXFP4_BLOCK_ELEMS);
    if (matrix->codes == NULL || matrix->scales == NULL) {
        drop_arrays(matrix);
        return sw_fail(SW_ERR_NOMEM, "no memory for the matrix of an expert");
    }
    matrix->capacity = elems;
    return SW_OK;
}

/* Reads a matrix of bytes [rows, cols] that begins at byte `first` of a tensor, and transposes it. strip: room for
 * STRIP_ROWS rows. */
static sw_status read_turned(struct sw_safetensors *tensors, const struct sw_safetensor *tensor, int64_t first,
                             int64_t rows, int64_t cols, uint8_t *strip, uint8_t *out) {
    for (int64_t row = 0, now; row < rows; row += now) {
        now = sw_min_i64(rows - row, STRIP_ROWS);
        SW_TRY(sw_safetensors_read_bytes(tensors, tensor, first + row * cols, now * cols, strip));
        for (int64_t col = 0; col < cols; col++)
            for (int64_t i = 0; i < now; i++)
                out[col * rows + row + i] = strip[i * cols + col];
    }
    return SW_OK;
}

static sw_status read_matrix(struct sw_safetensors *tensors, const struct sw_stored_tensor *stored, int64_t number,
                             struct matrix *matrix) {
    const int64_t rows = stored->rows, cols = stored->cols, groups = cols / SW_MXFP4_BLOCK_ELEMS;
    uint8_t *strip = malloc((size_t)(STRIP_ROWS * cols / 2));
    sw_status status =
        strip != NULL ? make_room(matrix, rows * cols) : sw_fail(SW_ERR_NOMEM, "no memory for the matrix of an expert");
    if (status == SW_OK)
        status = read_turned(tensors, stored->values, number * rows * cols / 2, rows, cols / 2, strip, matrix->codes);
    if (status == SW_OK)
        status = read_turned(tensors, stored->scales, number * rows * groups, rows, groups, strip, matrix->scales);
    free(strip);
    return status;
}

/* Returns the matrix if it is there or under way, else NULL. */
static struct matrix *find_matrix(struct sw_transposed_experts *experts, const struct sw_safetensor *values,
                                  int64_t number) {
    for (int m = 0; m < KEPT_MATRICES; m++)
        if (experts->matrix[m].values == values && experts->matrix[m].number == number)
            return &experts->matrix[m];
    return NULL;
}

/* Returns the matrix that was taken the longest ago of those that no thread uses, or NULL. */
static struct matrix *find_unused(struct sw_transposed_experts *experts) {
    struct matrix *found = NULL;
    for (int m = 0; m < KEPT_MATRICES; m++) {
        struct matrix *matrix = &experts->matrix[m];
        if (!matrix->loading && matrix->users == 0 && (found == NULL || matrix->used < found->used))
            found = matrix;
    }
    return found;
}

/* Takes the matrix of an expert, and reads it if it is not there. A matrix that was taken is given back. */
static sw_status take_matrix(struct sw_safetensors *tensors, const struct sw_stored_tensor *stored, int64_t number,
                             struct matrix **out) {
    struct sw_transposed_experts *experts = stored->transposed;
    struct matrix *matrix;
    sw_status status = SW_OK;
    pthread_mutex_lock(&experts->lock);
    for (;;) {
        matrix = find_matrix(experts, stored->values, number);
        if (matrix != NULL && !matrix->loading)
            break;
        struct matrix *unused = matrix == NULL ? find_unused(experts) : NULL;
        if (unused == NULL) {
            pthread_cond_wait(&experts->changed, &experts->lock);
            continue;
        }
        matrix = unused;
        matrix->values = stored->values;
        matrix->number = number;
        matrix->loading = true;
        pthread_mutex_unlock(&experts->lock);
        status = read_matrix(tensors, stored, number, matrix);
        pthread_mutex_lock(&experts->lock);
        matrix->loading = false;
        if (status != SW_OK)
            matrix->values = NULL;
        pthread_cond_broadcast(&experts->changed);
        break;
    }
    if (status == SW_OK) {
        matrix->users++;
        matrix->used = ++experts->takes;
    }
    pthread_mutex_unlock(&experts->lock);
    *out = matrix;
    return status;
}

static void give_back(struct sw_transposed_experts *experts, struct matrix *matrix) {
    pthread_mutex_lock(&experts->lock);
    matrix->users--;
    pthread_cond_broadcast(&experts->changed);
    pthread_mutex_unlock(&experts->lock);
}

/* Writes the values of elements [first, first+count) of the transposed matrix, [columns, rows] of the file's. */
static void give_values(const struct sw_stored_tensor *stored, const struct matrix *matrix, int64_t first,
                        int64_t count, float *out) {
    const float *level = stored->transposed->level;
    const int64_t rows = stored->rows;
    for (int64_t done = 0, now; done < count; done += now) {
        const int64_t col = (first + done) / rows, row = (first + done) % rows;
        const uint8_t *codes = matrix->codes + col / 2 * rows + row;
        const uint8_t *scales = matrix->scales + col / SW_MXFP4_BLOCK_ELEMS * rows + row;
        const int shift = (int)(col % 2) * 4;
        now = sw_min_i64(rows - row, count - done);
        for (int64_t i = 0; i < now; i++)
            out[done + i] = level[codes[i] >> shift & 15] * sw_mxfp4_scale(scales[i]);
    }
}

static sw_status read_transposed(struct sw_safetensors *tensors, const struct sw_stored_tensor *stored, int64_t first,
                                 int64_t count, float *out) {
    const int64_t elems = stored->rows * stored->cols;
    for (int64_t done = 0, now; done < count; done += now) {
        const int64_t number = (first + done) / elems, within = (first + done) % elems;
        struct matrix *matrix;
        now = sw_min_i64(count - done, elems - within);
        SW_TRY(take_matrix(tensors, stored, number, &matrix));
        give_values(stored, matrix, within, now, out + done);
        give_back(stored->transposed, matrix);
    }
    return SW_OK;
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

static sw_status announce_mxfp4(struct sw_safetensors *tensors, const struct sw_stored_tensor *stored, int64_t first,
                                int64_t count, int64_t position, bool *out_taken) {
    const int64_t byte = first / 2, group = first / SW_MXFP4_BLOCK_ELEMS, end = first + count;
    SW_TRY(sw_safetensors_announce(tensors, stored->values, byte, sw_div_up(end, 2) - byte, position, out_taken));
    if (!*out_taken)
        return SW_OK;
    return sw_safetensors_announce(tensors, stored->scales, group, sw_div_up(end, SW_MXFP4_BLOCK_ELEMS) - group,
                                   position, out_taken);
}

sw_status sw_stored_tensor_announce(struct sw_safetensors *tensors, const struct sw_stored_tensor *stored,
                                    int64_t first, int64_t count, int64_t position, bool *out_taken) {
    const int64_t end = first + count, elems = stored->rows * stored->cols;
    *out_taken = true;
    if (stored->format != SW_BASE_MXFP4)
        return sw_safetensors_announce(tensors, stored->values, stored->first + first, count, position, out_taken);
    if (stored->rows == 0)
        return announce_mxfp4(tensors, stored, first, count, position, out_taken);
    /* The first element of a transposed matrix needs all of it, and the others nothing more. */
    for (int64_t at = sw_round_up(first, elems); *out_taken && at < end; at += elems)
        SW_TRY(announce_mxfp4(tensors, stored, at, elems, position, out_taken));
    return SW_OK;
}

int64_t sw_stored_tensor_offset(const struct sw_stored_tensor *stored, int64_t elem) {
    const int64_t expert = stored->rows > 0 ? elem / (stored->rows * stored->cols) : 0;
    const int64_t within = elem - expert * stored->rows * stored->cols;
    if (stored->rows > 0)
        elem += within % stored->rows * stored->cols + within / stored->rows - within;
    const int64_t at = stored->format == SW_BASE_MXFP4 ? elem / 2 : stored->first + elem;
    return stored->values->offset_bytes + at * stored->values->elem_bytes;
}
