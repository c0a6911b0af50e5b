#include "train/cli/cmd_ranks.h"
#include "train/cli/cmd_run.h"
#include "train/cli/commands.h"
#include "train/hf/config.h"
#include "train/run/signals.h"
#include "train/run/trainer.h"


static int train(struct sw_ranks *ranks, struct sw_settings *settings) {
    struct sw_trainer *trainer = NULL;
    sw_status status = sw_ranks_begin_watch(ranks, settings->rank_timeout);
    if (status == SW_OK)
        status = sw_trainer_create(settings, ranks, sw_signals_catch(sw_ranks_rank(ranks) == 0), &trainer);
    if (status != SW_OK)
        return sw_command_fail_ranks(ranks, status);
    const int code = trainer->run.settings.dry_run ? sw_run_say_checked(ranks, trainer) : sw_run_to_end(ranks, trainer);
    sw_trainer_close(trainer);
    return code;
}

int sw_command_train(int argc, char **argv) {
    struct sw_settings settings = {0};
    struct sw_ranks ranks;
    int code;
    if (!sw_command_begin(&ranks, "train", &code))
        return code;
    if (sw_command_parse_ranks(&ranks, &sw_train_command, argc, argv, &settings, &code))
        code = train(&ranks, &settings);
    sw_options_release(&sw_train_command, &settings);
    sw_command_end(&ranks, code);
    return code;
}
