// Package repair is `trivet repair`: what would be written to mend findings, and having it written.
//
// A plan writes nothing and gives a token. Applying takes that token, so that what is written is what was shown or nothing at all;
// the same token again goes on where the first time stopped. A person at a terminal is asked before anything is written, a script
// says --yes.
package repair
