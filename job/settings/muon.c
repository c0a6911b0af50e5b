/* Muon by --optimizer or --optimizer-for: the flags that it does not go with, and its rate. */
#include "job/settings/muon.h"

#include "core/log.h"
#include "core/optimizer_format.h"
#include "core/status.h"
#include "job/settings/pipeline.h"
#include "model/optimizer_for.h"

bool sw_settings_use_muon(const struct sw_settings *s) {
    if (s->optimizer_state >= SW_OPTIMIZER_FORMATS)
        return false;
    return s->tuning.optimizer != SW_TRAINS_ADAMW || sw_optimizer_for_has_muon(s->tuning.optimizer_for);
}

sw_status sw_settings_check_muon(const struct sw_settings *s) {
    const struct {
        bool given;
        const char *flag, *why;
    } others[] = {
        {s->tensor == SW_OPTION_AUTO, "--tensor auto", "the results depend on the number, so name it"},
        {sw_settings_expert_ranks(s) > 1, "--experts", "it shares out experts by groups; leave it out"},
        {s->tiles > 1, "--tiles", "tiles cut matrices; leave it out"},
        {sw_settings_stages(s) > 1, "--pipeline", "leave one of them out"},
        {s->tuning.lora.rank > 0 || s->adapter != NULL, "--lora",
         "it is for the matrices of layers; leave one of them out"},
        {s->precision == SW_PRECISION_FP8, "--precision fp8", "give --precision bf16"},
        {s->muon_lr > 0.0 && s->lr == 0.0, "--lr 0", "--muon-lr follows its schedule; give a rate above 0"},
    };
    for (size_t i = 0; sw_settings_use_muon(s) && i < sizeof others / sizeof others[0]; i++)
        if (others[i].given)
            return sw_fail(SW_ERR_ARG, "--optimizer muon does not go with %s: %s", others[i].flag, others[i].why);
    return SW_OK;
}

/* Usual peak rates of Muon with each scale (Jordan et al. 2024; arXiv 2502.16982). */
static const struct {
    double least, most;
} muon_rates[SW_MUON_SCALES] = {[SW_MUON_MOONSHOT] = {1e-5, 1e-2}, [SW_MUON_JORDAN] = {2e-3, 0.1}};
#define AUTO_LR_JORDAN 0.02

sw_status sw_settings_resolve_muon(struct sw_settings *s, const struct sw_device_info *device) {
    if (!sw_settings_use_muon(s))
        return SW_OK;
    if (!device->host_memory && s->update == SW_UPDATE_HOST)
        return sw_fail(SW_ERR_ARG,
                       "--optimizer muon does not go with --update host: on a GPU its updates run there, so "
                       "that results do not depend on where state lives; leave --update out");
    if (sw_settings_tensor_ranks(s) > 1)
        sw_log_info(
            "with --tensor %d Muon takes each rank's part of a matrix as a matrix, so results differ from those "
            "of whole ones",
            (int)sw_settings_tensor_ranks(s));
    if (s->muon_lr == (double)SW_OPTION_AUTO)
        s->muon_lr = s->muon_scale == SW_MUON_JORDAN ? AUTO_LR_JORDAN : s->lr;
    if (s->muon_lr > 0.0 &&
        (s->muon_lr < muon_rates[s->muon_scale].least || s->muon_lr > muon_rates[s->muon_scale].most))
        sw_log_warn("Muon's learning rate is %g, and with --muon-scale %s it usually is between %g and %g: see "
                    "--muon-lr",
                    s->muon_lr, s->muon_scale == SW_MUON_JORDAN ? "jordan" : "moonshot",
                    muon_rates[s->muon_scale].least, muon_rates[s->muon_scale].most);
    return SW_OK;
}

double sw_settings_muon_lr(const struct sw_settings *settings, double lr) {
    return settings->lr > 0.0 ? lr * (settings->muon_lr / settings->lr) : 0.0;
}
