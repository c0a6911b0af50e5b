/* NUMA nodes, their memory, and the cores near them. */
#include "core/machine.h"
#include "core/system_file.h"

#include <hwloc.h>

/* Returns the machine's topology, which the caller destroys; NULL where it cannot be had. */
static hwloc_topology_t load(void) {
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) != 0)
        return NULL;
    if (hwloc_topology_load(topology) == 0)
        return topology;
    hwloc_topology_destroy(topology);
    return NULL;
}

static bool is_near_one(hwloc_topology_t topology, hwloc_const_bitmap_t cores) {
    for (hwloc_obj_t node = NULL; (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != NULL;)
        if (hwloc_bitmap_isincluded(cores, node->cpuset))
            return true;
    return false;
}

void sw_machine_bind_to_node(void *base, int64_t bytes, int numa_node) {
    hwloc_topology_t topology = load();
    if (topology == NULL)
        return;
    const hwloc_obj_t node = hwloc_get_numanode_obj_by_os_index(topology, (unsigned)numa_node);
    if (node != NULL)
        (void)hwloc_set_area_membind(topology, base, (size_t)bytes, node->nodeset, HWLOC_MEMBIND_BIND,
                                     HWLOC_MEMBIND_BYNODESET);
    hwloc_topology_destroy(topology);
}

void sw_machine_keep_to_node(int numa_node) {
    hwloc_topology_t topology = load();
    hwloc_bitmap_t cores = hwloc_bitmap_alloc();
    const hwloc_obj_t node =
        topology == NULL ? NULL : hwloc_get_numanode_obj_by_os_index(topology, (unsigned)numa_node);
    if (node != NULL && cores != NULL && hwloc_get_cpubind(topology, cores, HWLOC_CPUBIND_THREAD) == 0 &&
        !is_near_one(topology, cores) && hwloc_bitmap_intersects(cores, node->cpuset)) {
        hwloc_bitmap_and(cores, cores, node->cpuset);
        (void)hwloc_set_cpubind(topology, cores, HWLOC_CPUBIND_THREAD);
    }
    hwloc_bitmap_free(cores);
    if (topology != NULL)
        hwloc_topology_destroy(topology);
}

int sw_machine_node_of_share(int number, int shares) {
    hwloc_topology_t topology = load();
    int node = -1;
    if (topology == NULL)
        return node;
    const int nodes = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
    if (nodes > 1 && shares > 1)
        node = (int)hwloc_get_obj_by_type(topology, HWLOC_OBJ_NUMANODE, (unsigned)(number * nodes / shares))->os_index;
    hwloc_topology_destroy(topology);
    return node;
}

int sw_machine_node_of_bus(const char *bus) {
    return bus == NULL || bus[0] == '\0' ? -1 : (int)sw_system_number("", "/sys/bus/pci/devices/%s/numa_node", bus);
}
