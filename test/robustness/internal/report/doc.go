// Package report writes the results of runs as a table of faults and services. It has no I/O.
package report
