#include "library/cuda_driver.h"

#include "core/library.h"

struct cuda_driver sw_cuda_driver;
static struct sw_library library = SW_LIBRARY_INIT;

sw_status sw_cuda_driver_check(CUresult result, const char *doing) {
    const char *name = NULL, *text = NULL;
    if (result == CUDA_SUCCESS)
        return SW_OK;
    (void)sw_cuda_driver.error_name(result, &name);
    (void)sw_cuda_driver.error_string(result, &text);
    return sw_fail(result == CUDA_ERROR_OUT_OF_MEMORY ? SW_ERR_NOMEM : SW_ERR_DEVICE, "CUDA: %s (%s), while %s",
                   text != NULL ? text : "an error that the driver does not know", name != NULL ? name : "unnamed",
                   doing);
}

bool sw_cuda_driver_is_gone(CUresult result) {
    return result == CUDA_ERROR_DEINITIALIZED || result == CUDA_ERROR_INVALID_CONTEXT ||
           result == CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

sw_status sw_cuda_driver_load(void) {
#define ENTRY(member, name, arguments) {name, (void **)&sw_cuda_driver.member},
    static const struct sw_library_function functions[] = {CUDA_DRIVER_FUNCTIONS(ENTRY)};
#undef ENTRY
    static const char *const names[] = {"libcuda.so.1", NULL};
    const char *failure = sw_library_load(
        &library, &(struct sw_library_need){.names = names,
                                            .built_path = "",
                                            .functions = functions,
                                            .function_count = (int)(sizeof functions / sizeof functions[0])});
    int count = 0;
    if (failure != NULL)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "NVIDIA's driver cannot be loaded (%s): install it, make it visible in this container, or keep "
                       "the tensors in host memory",
                       failure);
    CUresult result = sw_cuda_driver.init(0);
    if (result == CUDA_SUCCESS)
        result = sw_cuda_driver.device_count(&count);
    if (result == CUDA_ERROR_NO_DEVICE || (result == CUDA_SUCCESS && count == 0))
        return sw_fail(SW_ERR_UNSUPPORTED, "this machine has no GPU of NVIDIA, or CUDA_VISIBLE_DEVICES hides it: keep "
                                           "the tensors in host memory");
    return sw_cuda_driver_check(result, "starting NVIDIA's driver");
}

sw_status sw_cuda_driver_choose(int number, CUdevice *device, CUcontext *context) {
    int count = 0;
    SW_TRY(sw_cuda_driver_load());
    SW_TRY(sw_cuda_driver_check(sw_cuda_driver.device_count(&count), "counting GPUs"));
    if (number < 0 || number >= count)
        return sw_fail(SW_ERR_ARG, "there is no CUDA device %d: they are numbered from 0, and the last one here is %d",
                       number, count - 1);
    SW_TRY(sw_cuda_driver_check(sw_cuda_driver.device_get(device, number), "choosing a GPU"));
    return sw_cuda_driver_check(sw_cuda_driver.retain(context, *device), "starting a GPU");
}
