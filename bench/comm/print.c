#include "bench/comm/print.h"

#include "core/size.h"

#include <stdio.h>

static const char *const names[SW_COMM_CONTENDERS] = {"gather", "reduce", "library", "plain", "memcpy"};

void sw_comm_print_line(const struct sw_comm_report *report, int64_t bytes, const struct sw_bench_rounds *rounds) {
    char size[SW_SIZE_CHARS];
    printf("%10s", sw_format_size(bytes, size));
    for (int who = 0; who < SW_COMM_CONTENDERS; who++) {
        if (who == SW_COMM_PLAIN && !report->plain)
            printf(" %8s", "-");
        else
            printf(" %8.2f", sw_bench_median(rounds, who) * 1e-9);
    }
    for (int who = SW_COMM_GATHER; who <= SW_COMM_LIBRARY; who++) {
        printf(" |%6.2f", sw_bench_ratio(rounds, who, SW_COMM_MEMCPY));
        if (report->plain)
            printf(" %6.2f", sw_bench_ratio(rounds, who, SW_COMM_PLAIN));
    }
    putchar('\n');
}

static json_t *way_json(const struct sw_comm_report *report, const struct sw_bench_rounds *rounds, int who) {
    json_t *way = json_pack("{s:f, s:f}", "bytes_per_s", sw_bench_median(rounds, who), "of_memcpy",
                            sw_bench_ratio(rounds, who, SW_COMM_MEMCPY));
    if (report->plain)
        json_object_set_new(way, "of_plain", json_real(sw_bench_ratio(rounds, who, SW_COMM_PLAIN)));
    return way;
}

json_t *sw_comm_size_json(const struct sw_comm_report *report, int64_t bytes, const struct sw_bench_rounds *rounds) {
    json_t *size = json_pack("{s:I, s:f}", "bytes", (json_int_t)bytes, "memcpy_bytes_per_s",
                             sw_bench_median(rounds, SW_COMM_MEMCPY));
    for (int who = SW_COMM_GATHER; who <= SW_COMM_LIBRARY; who++)
        json_object_set_new(size, names[who], way_json(report, rounds, who));
    if (report->plain)
        json_object_set_new(size, "plain_bytes_per_s", json_real(sw_bench_median(rounds, SW_COMM_PLAIN)));
    return size;
}

void sw_comm_print_head(const struct sw_comm_report *report) {
    const struct sw_comm_place *place = sw_comm_place(report->comm);
    printf("%d ranks on %d machine%s by %s, %s, %s: GB/s that a rank gives (median of %d); then ours and the library's "
           "reduction to memcpy by every rank at once, and to plain sends\na gather of next to nothing takes %.1f us\n"
           "%10s",
           place->ranks, place->nodes, place->nodes == 1 ? "" : "s", sw_comm_transport_name(report->comm),
           report->device, report->precision, report->rounds, report->latency_s * 1e6, "");
    for (int who = 0; who < SW_COMM_CONTENDERS; who++)
        printf(" %8s", names[who]);
    printf(" | gather | reduce | library\n");
}

json_t *sw_comm_report_json(const struct sw_comm_report *report, json_t *sizes) {
    const struct sw_comm_place *place = sw_comm_place(report->comm);
    return json_pack("{s:s, s:s, s:s, s:i, s:i, s:s, s:i, s:f, s:O}", "bench", "comm", "device", report->device,
                     "precision", report->precision, "ranks", place->ranks, "nodes", place->nodes, "transport",
                     sw_comm_transport_name(report->comm), "rounds", report->rounds, "latency_s", report->latency_s,
                     "sizes", sizes);
}
