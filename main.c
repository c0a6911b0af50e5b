/* spillway: trains transformer models whose training state does not fit on the device. */
#include "bench/options.h"
#include "cli/commands.h"
#include "core/log.h"
#include "core/machine.h"
#include "core/status.h"
#include "core/text/text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name;
    const char *what;
    int (*run)(int argc, char **argv);
    bool by_ranks;    /* several ranks may run the command together; other commands refuse more than one */
    bool prints_text; /* standard output is the text of a model or of documents, whose lines stay as they are */
} commands[] = {
    {.name = "doctor", .what = "what this machine has, what limits it, and the fix", .run = sw_command_doctor},
    {.name = "tokenize", .what = "write text as a model's tokens", .run = sw_command_tokenize},
    {.name = "inspect", .what = "print data as a model will see them", .run = sw_command_inspect, .prints_text = true},
    {.name = "plan",
     .what = "where state would live, and how long a step would take",
     .run = sw_command_plan,
     .by_ranks = true},
    {.name = "train", .what = "train a model", .run = sw_command_train, .by_ranks = true},
    {.name = "resume", .what = "continue a run from its last commit", .run = sw_command_resume, .by_ranks = true},
    {.name = "eval", .what = "loss and perplexity on a file", .run = sw_command_eval, .by_ranks = true},
    {.name = "generate",
     .what = "continue a text, or chat",
     .run = sw_command_generate,
     .by_ranks = true,
     .prints_text = true},
    {.name = "report", .what = "write a page that shows how runs went", .run = sw_command_report},
    {.name = "export", .what = "write the weights as a Hugging Face folder", .run = sw_command_export},
    {.name = "tensors", .what = "list a run's tensors, or write one as a numpy array", .run = sw_command_tensors},
    {.name = "verify", .what = "read a run's store and check every checksum", .run = sw_command_verify},
    {.name = "bench", .what = "measure this machine against its own limits", .run = sw_command_bench, .by_ranks = true},
};
enum { COMMAND_COUNT = sizeof commands / sizeof commands[0] };

static void print_command(const char *name, const char *what, FILE *to) {
    enum { WHAT_COLUMN = 13 };
    fprintf(to, "  %-10s ", name);
    sw_print_wrapped(what, WHAT_COLUMN, WHAT_COLUMN, to);
    fputc('\n', to);
}

static void print_help(FILE *to) {
    fprintf(to, "spillway " SW_VERSION ": trains transformers whose state does not fit on the GPU\n\n"
                "Usage: spillway COMMAND [arguments]\n"
                "       spillway COMMAND --help explains a command and its flags\n\n"
                "Commands:\n");
    for (int i = 0; i < COMMAND_COUNT; i++)
        print_command(commands[i].name, commands[i].what, to);
    print_command("help", "explain a command", to);
    print_command("version", "the version of this program", to);
    sw_options_help_exits(to);
}

/* Turns success into failure if standard output could not be written, which may become known only at the last flush. */
static int end_output(const char *command, int code) {
    const bool failed = fflush(stdout) != 0 || ferror(stdout) != 0;
    sw_log_end_output();
    if (!failed || code != SW_EXIT_DONE)
        return code;
    sw_error_clear();
    return sw_command_fail(command, sw_fail(SW_ERR_IO, "standard output cannot be written: %s", strerror(errno)));
}

static bool is_one_of(const char *word, const char *const names[3]) {
    return strcmp(word, names[0]) == 0 || strcmp(word, names[1]) == 0 || strcmp(word, names[2]) == 0;
}

/* Refuses an SW_CPU_ISA that cannot be used, before any command computes with another instruction set. */
static bool isa_is_usable(const char *command, int *out_exit) {
    sw_isa isa;
    bool named;
    const sw_status status = sw_isa_in_use(&isa, &named);
    *out_exit = status == SW_OK ? SW_EXIT_DONE : sw_command_fail(command, status);
    return status == SW_OK;
}

/* Runs the command that argv[0] names and returns its exit status. */
static int run_command(int argc, char **argv) {
    for (int i = 0; i < COMMAND_COUNT; i++) {
        int code;
        if (strcmp(argv[0], commands[i].name) != 0)
            continue;
        if (!commands[i].by_ranks && !sw_command_is_alone(argv[0], &code))
            return code;
        if (!isa_is_usable(argv[0], &code))
            return code;
        sw_log_begin_output(!commands[i].prints_text);
        return end_output(argv[0], commands[i].run(argc - 1, argv + 1));
    }
    struct sw_nearest nearest = sw_nearest_begin(argv[0], strlen(argv[0]));
    for (int i = 0; i < COMMAND_COUNT; i++)
        sw_nearest_consider(&nearest, commands[i].name);
    sw_log_error("spillway: there is no command '%s'; %s%s%sspillway --help lists them", argv[0],
                 nearest.name != NULL ? "did you mean " : "", nearest.name != NULL ? nearest.name : "",
                 nearest.name != NULL ? "? " : "");
    return SW_EXIT_USAGE;
}

/* Turns `help train` into `train --help`, and `help bench io` into `bench io --help`. */
static int help_with(int argc, char **argv) {
    enum { MOST_WORDS = 2 };
    char *words[MOST_WORDS + 1];
    const int count = argc < MOST_WORDS ? argc : MOST_WORDS;
    for (int i = 0; i < count; i++)
        words[i] = argv[i];
    words[count] = "--help";
    return run_command(count + 1, words);
}

/* A thread that waits in OpenMP spins for milliseconds before it sleeps, unless the environment says otherwise. If
 * other programs are running, it takes the core from the thread it waits for, or from those programs. The runtime reads
 * the environment before main begins, so the program restarts itself with threads that sleep while they wait, unless
 * the user has chosen. If that fails, they spin. */
static void start_with_sleeping_waits(char **argv) {
    char path[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0 || getenv("GOMP_SPINCOUNT") != NULL || getenv("OMP_WAIT_POLICY") != NULL)
        return;
    path[length] = '\0';
    setenv("OMP_WAIT_POLICY", "passive", 0);
    execv(path, argv);
}

/* Spares a start milliseconds: hwloc's plugins are about graphics cards, displays and buses, which nobody here asks it
 * for, and oneDNN looks for a profiler that is to hear of its kernels. Users' own settings count. */
static void skip_what_nobody_asks_for(void) {
    setenv("HWLOC_PLUGINS_PATH", "", 0);
    setenv("DNNL_JIT_PROFILE", "0", 0);
}

/* Opens closed standard descriptors on /dev/null. Otherwise the next opened file would get their number, and messages
 * would be written into it. */
static void open_standard_descriptors(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDWR) != fd)
            _exit(SW_EXIT_FAILED);
}

/* The disposition of SIGHUP that this program was started with, as by nohup. Libraries that MPI loads (UCX) catch the
 * signal before main begins, so it is read before any library's constructor runs. */
static struct sigaction hangup;

static void note_hangup(void) {
    sigaction(SIGHUP, NULL, &hangup);
}
__attribute__((section(".preinit_array"), used)) static void (*const before_libraries)(void) = note_hangup;

int main(int argc, char **argv) {
    static const char *const version_names[] = {"version", "--version", "-V"};
    static const char *const help_names[] = {"help", "--help", "-h"};
    open_standard_descriptors();
    sigaction(SIGHUP, &hangup, NULL);
    skip_what_nobody_asks_for();
    if (argc < 2) {
        print_help(stderr);
        return SW_EXIT_USAGE;
    }
    if (is_one_of(argv[1], version_names)) {
        puts("spillway " SW_VERSION);
        return end_output("version", SW_EXIT_DONE);
    }
    if (!is_one_of(argv[1], help_names)) {
        start_with_sleeping_waits(argv);
        return run_command(argc - 1, argv + 1);
    }
    if (argc > 2)
        return help_with(argc - 2, argv + 2);
    sw_log_begin_output(true);
    print_help(stdout);
    return end_output("help", SW_EXIT_DONE);
}
