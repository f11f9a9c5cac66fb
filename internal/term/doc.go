// Package term is the only leadership code: terms, shards and the members that hold them.
package term
