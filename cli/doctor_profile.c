/* Measures the machine's profile, and tells what it holds. */
#include "cli/doctor.h"
#include "job/planned.h"
#include "kernels/op_times.h"

#include <stdlib.h>
#include <string.h>

/* Tells what `plan` will go by. */
static void tell(struct sw_doctor *doctor, const struct sw_profile *profile) {
    const struct sw_rates *rates = &profile->rates;
    const double products = sw_op_times_best_rate(profile->times, SW_TIMED_PRODUCT);
    const double attention = sw_op_times_best_rate(profile->times, SW_DEVICE_ATTENTION_BACKWARD);
    json_t *facts =
        json_pack("{s:s?, s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "file", profile->path[0] != '\0' ? profile->path : NULL,
                  "op_sizes", (json_int_t)sw_op_times_count(profile->times), "products_flops_per_s", products,
                  "attention_flops_per_s", attention, "update_bytes_per_s", rates->update.bytes_per_s,
                  "upload_bytes_per_s", rates->upload.bytes_per_s, "read_bytes_per_s", rates->read.bytes_per_s,
                  "write_bytes_per_s", rates->write.bytes_per_s);
    sw_doctor_find(doctor, (struct sw_finding){.facts = facts},
                   "products %.1f GFLOPS, attention %.1f GFLOPS, update %.1f GB/s, upload %.1f GB/s, drives read "
                   "%.2f GB/s, write %.2f GB/s at best; kept in %s",
                   products * 1e-9, attention * 1e-9, rates->update.bytes_per_s * 1e-9,
                   rates->upload.bytes_per_s * 1e-9, rates->read.bytes_per_s * 1e-9, rates->write.bytes_per_s * 1e-9,
                   profile->path[0] != '\0' ? profile->path : "nothing, as there is no folder for caches");
}

/* Takes the settings of a plan whose model does not matter, as a profile is the same for all. */
static sw_status settings_of(const struct sw_doctor *doctor, struct sw_settings *settings) {
    SW_TRY(sw_options_defaults(&sw_plan_command, settings));
    settings->json = true; /* nothing is shown meanwhile: findings follow each other */
    free(settings->model);
    settings->model = strdup("gpt2-tiny");
    if (settings->model == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the settings of a profile");
    for (int i = 0; i < doctor->folder_count; i++)
        SW_TRY(sw_option_list_add(&settings->nvme, doctor->folders[i]));
    return SW_OK;
}

void sw_doctor_profile(struct sw_doctor *doctor) {
    struct sw_planned planned = {0};
    struct sw_profile profile;
    if (!doctor->profiles)
        return;
    sw_status status = settings_of(doctor, &planned.settings);
    if (status == SW_OK)
        status = sw_planned_make(&planned);
    if (status == SW_OK)
        status = sw_planned_profile(&planned, &(struct sw_profile_need){.drives = true, .again = true}, &profile);
    if (status == SW_OK) {
        tell(doctor, &profile);
        sw_profile_release(&profile);
    } else {
        sw_doctor_find(doctor, (struct sw_finding){.unknown = true}, "not measured: %s", sw_error_message(status));
        sw_error_clear();
    }
    sw_planned_release(&planned);
    sw_options_release(&sw_plan_command, &planned.settings);
}
