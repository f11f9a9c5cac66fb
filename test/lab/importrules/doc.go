// Package importrules checks the structure of the repository: which package may import which, where
// a process may exit, where the clock may be read, and that every package has a package comment.
// Each rule carries its reason. [Check] reports each breach with file, line and that reason.
//
// The rules read imports and syntax only. They therefore hold for code that does not compile yet,
// and for every build tag.
package importrules
