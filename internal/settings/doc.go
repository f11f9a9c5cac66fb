// Package settings reads the settings of a program: from the command line, the environment
// (TRIVET_<FLAG>) and the file of --config, in this order of precedence. It reports all mistakes
// together. It also has what the command lines of programs share: --help, --version and exit codes.
package settings
