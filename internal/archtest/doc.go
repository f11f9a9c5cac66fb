// Package archtest holds the house to its plan: which room may import which, where processes may exit, where clocks may be
// read, and what every package must say of itself. Each law carries the reason it exists; [Check] reports each breach
// with file, line and that reason.
//
// The laws read imports and syntax only, so they hold for code that does not compile yet, and for every build tag.
package archtest
