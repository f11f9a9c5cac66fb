// Package listing is what `trivet nodes`, `trivet leases` and others like them have in common: they list things that replicas keep,
// page by page through the gateway, and watch them.
//
// A kind of thing says how it is asked for and what its row looks like; this package gathers, shows and judges. Standard output
// carries the list in the chosen form and nothing else; how many there are of each state, and which replicas' parts are missing,
// goes to standard error. The exit code is 1 when something that is listed is not well, even if more may be missing; 2 when
// nothing of what is listed is unwell and something is missing, or when no list could be had; else 0.
//
// A watch has no verdict: it goes on until it is interrupted, through restarts of the gateway. On a terminal it shows a table in
// place, elsewhere a line for each change; what changes by itself, such as ages, is none. In the place of a terminal there is
// room for few: when not all fit, those that need a look come first.
package list
