/* The described machines that the program carries, for `plan --machine NAME`. */
#ifndef SW_JOB_MACHINE_SHIPPED_MACHINES_H
#define SW_JOB_MACHINE_SHIPPED_MACHINES_H

struct sw_shipped_machine {
    const char *name;  /* "rtx4090" */
    const char *about; /* description of the machine, in sentences */
    const char *text;  /* the JSON of its file */
};

/* The machines by name; a NULL name ends the table. The build makes it from the files in bench/machines. */
extern const struct sw_shipped_machine sw_shipped_machines[];

#endif
