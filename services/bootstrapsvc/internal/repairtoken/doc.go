// Package repairtoken is what a person carries from a plan to its application: which findings, which steps, until when.
//
// A token stores nothing anywhere and grants nothing. Whoever applies it plans again from the same findings and compares; a
// token that somebody made up therefore does no more than a plan that he could have asked for. One plan has one token, and one
// token has one spelling, so that its id can tell that it was applied before.
//
// The package is pure: the time is what its callers say it is.
package repairtoken
