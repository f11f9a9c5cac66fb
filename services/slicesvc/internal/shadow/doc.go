// Package shadow compares the slices that another program keeps with what slicesvc would write.
//
// Promise: slices differ in content exactly if clients would see other endpoints, ports, conditions
// or hints after the plan. How endpoints lie in slices is no difference of content: it has its own
// kind, because upstream's controllers and slicesvc fill slices differently on purpose.
//
// Invariants: no I/O, no clock. Inputs are not changed. The order of slices and endpoints does not
// matter.
package shadow
