package robustness

import "golang.org/x/sys/unix"

// limitFiles makes each write of a process beyond a size fail, after what fits into it, as a full
// disk does.
func limitFiles(pid int, size uint64) error {
	var now unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, nil, &now); err != nil {
		return err
	}
	return unix.Prlimit(pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: size, Max: now.Max}, nil)
}

// unlimitFiles reverts limitFiles.
func unlimitFiles(pid int) error {
	var now unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, nil, &now); err != nil {
		return err
	}
	return unix.Prlimit(pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: now.Max, Max: now.Max}, nil)
}
