// Package explain tells people why a Node is believed to be as it is: from its session to the eviction of its pods, each link
// with what was found, where, and what to look at next.
//
// Promise: Explain puts together what is known at one moment and decides nothing; equal Facts give equal chains. A chain always has
// all links in the same order, also those of which nothing is known. The first broken one is where to begin.
//
// Sentences are for somebody who was woken up: what is the case, since when, and what to do. Times are by the clock of the process
// that looked, but for those that objects contain.
package explain
