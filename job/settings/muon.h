/* The settings of Muon, which --optimizer and --optimizer-for choose for matrices of layers. */
#ifndef SW_JOB_SETTINGS_MUON_H
#define SW_JOB_SETTINGS_MUON_H

#include "job/settings/settings.h"

/* Tells whether Muon trains something. A layout that no user can choose is that of a run's units, for passes that train
 * nothing. */
bool sw_settings_use_muon(const struct sw_settings *settings);

/* Refuses what Muon's layout of state or its whole matrices do not go with. */
sw_status sw_settings_check_muon(const struct sw_settings *settings);

/* Resolves Muon's rate, and warns of one that is of another scale's size. */
sw_status sw_settings_resolve_muon(struct sw_settings *settings, const struct sw_device_info *device);

#endif
