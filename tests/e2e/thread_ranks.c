/* Runs a command of the program by ranks that are threads of this process: `thread_ranks N COMMAND ...` does what
 * `mpirun -n N spillway COMMAND ...` does, without MPI. The exit status is that of the first rank whose command has not
 * ended well. */
#include "bench/options.h"
#include "cli/commands.h"
#include "core/ranks/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_RANKS = 64, OWN_WORDS = 3 };

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} commands[] = {{"train", sw_command_train},       {"resume", sw_command_resume}, {"eval", sw_command_eval},
                {"generate", sw_command_generate}, {"plan", sw_command_plan},     {"bench", sw_command_bench}};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

struct job {
    int (*run)(int argc, char **argv);
    int argc;
    char **argv;
    int exits[MOST_RANKS];
};

static void run(void *context, int rank) {
    struct job *job = context;
    job->exits[rank] = job->run(job->argc, job->argv);
}

/* Has threads of OpenMP sleep while they wait, as the program does (main.c). */
static void start_with_sleeping_waits(char **argv) {
    if (getenv("OMP_WAIT_POLICY") == NULL && setenv("OMP_WAIT_POLICY", "passive", 0) == 0)
        execv("/proc/self/exe", argv);
}

int main(int argc, char **argv) {
    start_with_sleeping_waits(argv);
    struct job job = {.argc = argc - OWN_WORDS, .argv = argv + OWN_WORDS};
    const int ranks = argc >= OWN_WORDS ? atoi(argv[1]) : 0;
    for (int i = 0; i < COMMANDS && ranks > 0 && ranks <= MOST_RANKS; i++)
        if (strcmp(argv[2], commands[i].name) == 0)
            job.run = commands[i].run;
    if (job.run == NULL) {
        fprintf(stderr, "usage: %s RANKS COMMAND ...\n", argv[0]);
        return 2;
    }
    if (sw_comm_run_threads(ranks, run, &job) != SW_OK) {
        fprintf(stderr, "%s\n", sw_error_message(SW_ERR_INTERNAL));
        return 1;
    }
    int exit = 0;
    for (int rank = 0; rank < ranks && exit == 0; rank++)
        exit = job.exits[rank];
    return fflush(stdout) == 0 ? exit : 1;
}
