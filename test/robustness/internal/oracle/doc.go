// Package oracle judges the record of a run. Each rule is a function from a history to lags and
// violations, without I/O, clock or state.
//
// A rule of the form "never" gives a violation for each breach. A rule of the form "not for longer
// than a bound" gives a lag for each time in which it did not hold; Check compares the part of it
// that no fault excuses with the bound. So one run shows both whether a promise was kept, and how
// close it was.
//
// A breach for which the machine may account is undecided, and no violation: the lag is above the
// bound by the clock, and not without the times in which a process waited for a processor.
//
// Rules lists the rules, and Spoilers has for each of them a change of a record that breaks it.
package oracle
