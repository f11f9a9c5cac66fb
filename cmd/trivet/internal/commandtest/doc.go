// Package commandtest runs commands of trivet against a scripted gateway on the real server, and keeps what they leave behind as
// transcripts: standard output, standard error with the error as main prints it, and the exit code.
package commandtest
