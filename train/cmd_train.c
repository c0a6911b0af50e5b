#include "train/cmd_run.h"
#include "train/commands.h"
#include "train/config.h"
#include "train/trainer.h"

#include <stdio.h>
#include <string.h>

int sw_command_train(int argc, char **argv) {
    struct sw_settings settings = {0};
    int code;
    if (!sw_command_parse(&sw_train_command, argc, argv, &settings, &code)) {
        sw_options_release(&sw_train_command, &settings);
        return code;
    }
    struct sw_trainer *trainer = NULL;
    const sw_status status = sw_trainer_create(&settings, sw_signals_catch(), &trainer);
    sw_options_release(&sw_train_command, &settings);
    if (status != SW_OK)
        return sw_command_fail("train", status);
    code = sw_run_to_end("train", trainer);
    sw_trainer_close(trainer);
    return code;
}
