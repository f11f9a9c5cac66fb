// Package shadowcontroller runs a loop of slicesvc in dry run: it compares the slices that another
// program keeps with what slicesvc would write, and writes nothing.
//
// A pass begins with a proof that the caches have everything that the cluster had at its beginning.
// Without the proof nothing is compared, and all differences settle anew.
package shadowcontroller
