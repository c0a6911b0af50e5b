/* Merges adapters while weights are read.
 *
 * `prepare` reads the matrices as they are, and the factors of the adapters of one block. `fill` adds the products, and
 * may run on several threads. Both factors lie so that a row of the matrix is a sum of rows of the right one, for
 * matrices stored [out, in] and [in, out] alike. A tensor of all experts is a matrix for each of them. */
#include "model/merge.h"

#include "core/size.h"
#include "model/hf/whole_tensor.h"
#include "model/model.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MADE_GRAINS = 16, SUM_ELEMS = 2048, NAME_CHARS = SW_TENSOR_NAME_CHARS + sizeof SW_LORA_A };

/* The adapters of matrices [rows, cols], one or one for each expert: left is [rows, rank], right is [rank, cols]. */
struct factors {
    float *left, *right; /* NULL: the tensor has no adapter */
    int64_t rows, cols;
};

struct sw_merge {
    struct sw_merge_spec spec;
    struct sw_units *plain;
    struct sw_whole_tensor whole; /* the tensor of the units with adapters that is being read */
    float scale;
    float *made;                /* elements [first, first + count) of a plain unit, without the products */
    int64_t unit, first, count; /* unit -1: `made` is empty */
    struct factors *factors;    /* one entry per tensor of plain unit factors_unit */
    int64_t factors_unit;       /* -1: there are none */
};

static void drop_factors(struct sw_merge *self) {
    for (int64_t t = 0; self->factors_unit >= 0 && t < self->plain->unit[self->factors_unit].tensor_count; t++) {
        free(self->factors[t].left);
        free(self->factors[t].right);
    }
    free(self->factors);
    self->factors = NULL;
    self->factors_unit = -1;
}

/* Reads the factors of a tensor's adapters whole, and transposes each if asked to. The caller frees *out. */
static sw_status read_factor(struct sw_merge *self, int64_t *rows, int64_t *cols, bool transpose, float **out) {
    const struct sw_tensor *tensor = self->whole.part[0];
    const int64_t elems = sw_tensor_whole_elems(tensor);
    const int64_t height = tensor->dim[tensor->dims - 2], width = tensor->dim[tensor->dims - 1];
    float *read = malloc((size_t)elems * sizeof *read), *turned = NULL;
    if (transpose)
        turned = malloc((size_t)elems * sizeof *turned);
    sw_status status = read != NULL && (turned != NULL || !transpose)
                           ? SW_OK
                           : sw_fail(SW_ERR_NOMEM, "no memory to merge %s", tensor->name);
    if (status == SW_OK)
        status = sw_whole_tensor_read(&self->whole, &self->spec.load, 0, elems, read);
    for (int64_t i = 0; status == SW_OK && transpose && i < elems / width; i++)
        for (int64_t j = 0; j < width; j++)
            turned[i / height * height * width + j * height + i % height] = read[i * width + j];
    *rows = transpose ? width : height;
    *cols = transpose ? height : width;
    *out = transpose ? turned : read;
    if (transpose || status != SW_OK)
        free(read);
    if (status != SW_OK) {
        free(turned);
        *out = NULL;
    }
    return status;
}

/* Finds the tensor of the adapter of a matrix. Returns whether there is one. */
static bool find_factor(struct sw_merge *self, const struct sw_tensor *matrix, const char *end) {
    char adapted[SW_TENSOR_NAME_CHARS], name[NAME_CHARS];
    sw_lora_adapted(matrix->name, adapted);
    snprintf(name, sizeof name, "%s%s", adapted, end);
    return sw_whole_tensor_find(self->spec.units, name, &self->whole);
}

/* A matrix stored [out, in] is W + scale·B·A, one stored [in, out] W + scale·Aᵀ·Bᵀ. */
static sw_status read_factors_of(struct sw_merge *self, const struct sw_tensor *matrix, struct factors *out) {
    const bool turned = !self->spec.config->out_first || matrix->in_first;
    int64_t rank, inner;
    if (matrix->dims < 2 || !find_factor(self, matrix, turned ? SW_LORA_A : SW_LORA_B))
        return SW_OK;
    SW_TRY(read_factor(self, &out->rows, &rank, turned, &out->left));
    if (!find_factor(self, matrix, turned ? SW_LORA_B : SW_LORA_A))
        return sw_fail(SW_ERR_INTERNAL, "%s has half an adapter", matrix->name);
    SW_TRY(read_factor(self, &inner, &out->cols, turned, &out->right));
    assert(out->rows == matrix->dim[matrix->dims - 2] && out->cols == matrix->dim[matrix->dims - 1]);
    assert(rank == inner && rank == self->spec.lora->rank);
    return SW_OK;
}

static sw_status read_factors(struct sw_merge *self, int64_t unit) {
    const struct sw_unit *of = &self->plain->unit[unit];
    if (self->factors_unit == unit)
        return SW_OK;
    drop_factors(self);
    self->factors = calloc((size_t)of->tensor_count, sizeof *self->factors);
    if (self->factors == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to merge %s", of->name);
    self->factors_unit = unit;
    for (int64_t t = 0; t < of->tensor_count; t++)
        SW_TRY(read_factors_of(self, &of->tensor[t], &self->factors[t]));
    return SW_OK;
}

static sw_status read_run(void *context, int64_t tensor, int64_t whole, int64_t run, int64_t at) {
    struct sw_merge *self = context;
    const char *name = self->plain->unit[self->unit].tensor[tensor].name;
    if (!sw_whole_tensor_find(self->spec.units, name, &self->whole))
        return sw_fail(SW_ERR_INTERNAL, "the weights have no %s", name);
    return sw_whole_tensor_read(&self->whole, &self->spec.load, whole, run, self->made + at);
}

static sw_status prepare(void *context, int64_t unit, int64_t first, int64_t count) {
    struct sw_merge *self = context;
    assert(count <= (int64_t)MADE_GRAINS * SW_GRAIN_ELEMS);
    self->unit = -1;
    SW_TRY(read_factors(self, unit));
    self->unit = unit;
    self->first = first;
    self->count = count;
    memset(self->made, 0, (size_t)count * sizeof *self->made);
    return sw_unit_walk(&self->plain->unit[unit], first, count, read_run, self);
}

/* Adds scale times the sum of `rank` rows of `right`, each times its factor, to a part of a row. Rows of `right` are
 * `stride` apart. */
static void add_products(float scale, const float *restrict left, const float *restrict right, int64_t rank,
                         int64_t stride, int64_t count, float *restrict out) {
    float sum[SUM_ELEMS];
    memset(sum, 0, (size_t)count * sizeof *sum);
    for (int64_t r = 0; r < rank; r++) {
        const float factor = left[r];
        const float *restrict row = right + r * stride;
        for (int64_t i = 0; i < count; i++)
            sum[i] += factor * row[i];
    }
    for (int64_t i = 0; i < count; i++)
        out[i] += scale * sum[i];
}

struct addition {
    const struct sw_merge *merge;
    float *out;
};

static sw_status add_run(void *context, int64_t tensor, int64_t whole, int64_t run, int64_t at) {
    const struct addition *addition = context;
    const struct sw_merge *self = addition->merge;
    const struct factors *factors = &self->factors[tensor];
    const int64_t rank = self->spec.lora->rank;
    for (int64_t done = 0, count; factors->left != NULL && done < run; done += count) {
        const int64_t row = (whole + done) / factors->cols, col = (whole + done) % factors->cols;
        const float *right = factors->right + row / factors->rows * rank * factors->cols + col;
        count = sw_min_i64(sw_min_i64(factors->cols - col, run - done), SUM_ELEMS);
        add_products(self->scale, factors->left + row * rank, right, rank, factors->cols, count,
                     addition->out + at + done);
    }
    return SW_OK;
}

static sw_status fill(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    const struct sw_merge *self = context;
    struct addition addition = {self, out};
    assert(unit == self->unit && first >= self->first && first + count <= self->first + self->count);
    memcpy(out, self->made + (first - self->first), (size_t)count * sizeof *out);
    return sw_unit_walk(&self->plain->unit[unit], first, count, add_run, &addition);
}

/* Refuses units whose joined experts are the base as MXFP4 stores them: the model has them transposed. */
static sw_status check_experts(const struct sw_merge_spec *spec) {
    if (!spec->config->joined_experts || spec->units->base != SW_BASE_MXFP4)
        return SW_OK;
    return sw_fail(SW_ERR_UNSUPPORTED,
                   "adapters beside a base in --base-format mxfp4 are not merged into %s, which keeps its experts "
                   "transposed there; leave out --merge, and merge the adapter's folder with spillway export MODEL OUT "
                   "--adapter FOLDER --merge",
                   spec->config->family);
}

sw_status sw_merge_open(const struct sw_merge_spec *spec, struct sw_merge **out) {
    SW_TRY(check_experts(spec));
    struct sw_merge *self = calloc(1, sizeof *self);
    sw_status status = self != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to merge adapters");
    if (status == SW_OK) {
        self->spec = *spec;
        self->scale = (float)sw_lora_scale(spec->lora);
        self->unit = self->factors_unit = -1;
        self->made = malloc((size_t)MADE_GRAINS * SW_GRAIN_ELEMS * sizeof *self->made);
        if (self->made == NULL)
            status = sw_fail(SW_ERR_NOMEM, "no memory to merge adapters");
    }
    if (status == SW_OK)
        status = sw_whole_tensor_make(spec->units, &self->whole);
    if (status == SW_OK)
        status = sw_model_units(spec->config, 1, SW_OPTIMIZER_FP32, NULL, &self->plain);
    if (status != SW_OK) {
        sw_merge_close(self);
        return status;
    }
    *out = self;
    return SW_OK;
}

void sw_merge_close(struct sw_merge *self) {
    if (self == NULL)
        return;
    drop_factors(self);
    sw_units_destroy(self->plain);
    sw_whole_tensor_release(&self->whole);
    free(self->made);
    free(self);
}

const struct sw_units *sw_merge_units(const struct sw_merge *self) {
    return self->plain;
}

struct sw_load sw_merge_load(struct sw_merge *self) {
    return (struct sw_load){.fill = fill, .prepare = prepare, .context = self, .most_grains = MADE_GRAINS};
}
