// Package placement knows where the endpoints of one Service lie in its slices,
// so that a change of few pods costs what it touches and not what the Service has.
//
// Promise: Plan gives the very plan that pack.Make gives for everything the
// Service should have, from the changed pods alone. It looks at those pods, at
// the slices that hold them, and, only when a new endpoint finds no room there, at
// how full the other slices are. What chooses slices is pack.Make in both cases;
// this package only finds the part it has to look at.
//
// That holds as long as a Placement is settled: it was made from slices for which
// a plan for the whole is empty, every plan since was carried out to the end and
// told by Wrote and Deleted, and every pod that changed was in some plan. Whoever
// keeps a Placement drops it and plans the whole when anything else happens: the
// Service changed, somebody else wrote a slice, a write failed. The whole is also
// the way for Services with hints for the whole cluster, where one pod may change
// the hints of all, and for those being deleted, which get no new slices.
//
// Invariants: no I/O, no clock; a plan for pods that did not change is empty;
// slices are kept as given and never changed. A Placement is not safe for
// concurrent use.
//
// What it does not do: it does not know pods, and decides nothing.
package placement
