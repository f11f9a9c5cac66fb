// Package pauseclock counts the time in which this process could hear signs of life.
//
// Promise: it stands still while the process did not run, be it for a pause, a starved machine or a long collection, so that
// nobody's deadline passes in a time in which nobody could be heard.
package pauseclock
