/* SW_WIDE_VECTORS before a function: where the compiler can, it makes the function for processors with wide vectors
 * too, and the program chooses as it starts. */
#ifndef SW_TESTS_EQUIPMENT_VECTORS_H
#define SW_TESTS_EQUIPMENT_VECTORS_H

#if defined(__x86_64__) && __GNUC__ >= 12 && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) &&                  \
    !defined(__SANITIZE_THREAD__)
#define SW_WIDE_VECTORS __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define SW_WIDE_VECTORS
#endif

#endif
