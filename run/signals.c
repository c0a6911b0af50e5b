#include "run/signals.h"

#include "core/clock.h"
#include "core/status.h"

#include <stdatomic.h>
#include <unistd.h>

/* Global: a signal handler gets no argument of ours. */
static volatile sig_atomic_t stop_requested, asked, speaking;
static _Atomic int64_t expected_step, expected_end_ns; /* 0: unknown */

#define NS_PER_S INT64_C(1000000000)
enum { ANSWER_CHARS = 160, NUMBER_CHARS = 20, SECONDS_SHOWN = 600, SECONDS_PER_MINUTE = 60 };

struct answer {
    char text[ANSWER_CHARS];
    size_t chars;
};

static void add_text(struct answer *answer, const char *text) {
    for (; *text != '\0' && answer->chars < sizeof answer->text; text++)
        answer->text[answer->chars++] = *text;
}

/* Appends a decimal number. A signal handler may not call snprintf. */
static void add_number(struct answer *answer, int64_t number) {
    char digits[NUMBER_CHARS + 1] = "";
    char *at = digits + NUMBER_CHARS;
    do
        *--at = (char)('0' + number % 10);
    while ((number /= 10) > 0 && at > digits);
    add_text(answer, at);
}

static void add_time(struct answer *answer, int64_t end_ns) {
    const int64_t left_ns = end_ns - sw_now_ns(), seconds = left_ns > 0 ? left_ns / NS_PER_S + 1 : 1;
    const bool long_time = seconds >= SECONDS_SHOWN;
    add_text(answer, ", about ");
    add_number(answer, long_time ? seconds / SECONDS_PER_MINUTE : seconds);
    add_text(answer, long_time ? " min" : " s");
}

static void say_answer(bool by_hand) {
    const int64_t step = expected_step, end_ns = expected_end_ns;
    struct answer answer = {0};
    add_text(&answer, step > 0 ? "\nstopping after step " : "\nending as soon as nothing is lost by it");
    if (step > 0)
        add_number(&answer, step);
    if (step > 0 && end_ns > 0)
        add_time(&answer, end_ns);
    add_text(&answer, by_hand ? "; once more ends at once\n" : "\n");
    const ssize_t ignored = write(STDERR_FILENO, answer.text, answer.chars);
    (void)ignored;
}

/* Handles a signal. Another thread may get a second signal while the first is being answered. */
static void on_signal(int number) {
    const bool again = stop_requested, by_hand = number == SIGINT || number == SIGTERM, asked_before = asked;
    stop_requested = 1;
    asked = asked_before || by_hand;
    if (by_hand && asked_before)
        _exit(SW_EXIT_FAILED);
    if (!again && speaking)
        say_answer(by_hand);
}

const volatile sig_atomic_t *sw_signals_catch(bool speaks) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;
    sigemptyset(&action.sa_mask);
    if (speaks)
        speaking = 1;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        const bool ignored = sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN;
        if (numbers[i] != SIGHUP || !ignored)
            sigaction(numbers[i], &action, NULL);
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    return &stop_requested;
}

void sw_signals_expect(int64_t last_step, int64_t end_ns) {
    expected_step = last_step;
    expected_end_ns = end_ns;
}
