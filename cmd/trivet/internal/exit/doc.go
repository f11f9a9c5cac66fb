// Package exit is how a command of trivet ends, and how it says why.
//
// The code tells a script what to do without reading: 0 all is well; 1 the question was answered and the answer is bad
// (unhealthy, waited in vain); 2 the question could not be answered; 64 the command was not understood; 130 interrupted.
//
// What is printed for a person derives from the error itself: the ErrorInfo of an RPC gives the code in brackets, its
// message the cause, and a table here what to try.
package exit
