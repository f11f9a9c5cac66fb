// Package findings is `trivet findings`: what is wrong with the addresses and ports that are allocated to Services.
//
// A finding that is open makes the exit code 1; one that is pending was seen, and not for long enough yet to be sure. What would
// mend one is shown by `trivet repair plan`, what it was concluded from by `trivet explain finding`, and what it means in general
// stands in docs/findings, on a page for each code.
package findings
