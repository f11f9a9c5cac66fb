// Package child runs the programs that are measured, each as a process of its own, so that the CPU
// time and the memory it uses are its own too, and are read from the kernel instead of guessed.
//
// A child dies with its parent. Nothing here restarts one: a program that ends by itself has failed
// its measurement.
package child
