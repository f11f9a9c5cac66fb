// Package change is the vocabulary in which a plan speaks: what happens to which object, and why.
//
// A change is a value. Whoever decides makes it, whoever writes obeys it, and whoever only asks shows it, so that a
// dry run and a real one can never tell different stories. The package reads nothing and writes nothing.
package change
