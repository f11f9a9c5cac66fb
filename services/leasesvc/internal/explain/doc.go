// Package explain builds the evidence for the health of a Node: from its session to the eviction of
// its Pods, each link with what was found, where, and what to do next.
//
// Explain combines what is known at one moment and decides nothing; equal Facts give equal chains.
// A chain always has all links in the same order, also those of which nothing is known. A reader
// begins at the first broken link.
//
// Findings are for an operator on call: what is the case, since when, and what to do. Times are by
// the clock of the replica that answers, except times that objects contain.
package explain
