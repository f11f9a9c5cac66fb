// Package workdir is a directory that one process holds at a time: by a lock that ends with the process, however it ends.
//
// A temporary one is removed by Close. What a process that was killed has left behind is removed by the next Open of the
// same prefix, so that leftovers do not pile up; a directory whose lock is held, or that is young, is never touched.
package workdir
