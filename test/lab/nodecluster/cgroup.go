package nodecluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const cgroupMount = "/sys/fs/cgroup"

// hierarchies returns the mount points of cgroups: one for each controller in version 1, one in
// version 2.
func hierarchies() ([]string, error) {
	if _, err := os.Stat(filepath.Join(cgroupMount, "cgroup.procs")); err == nil {
		return []string{cgroupMount}, nil
	}
	found, err := filepath.Glob(filepath.Join(cgroupMount, "*", "cgroup.procs"))
	if err != nil || len(found) == 0 {
		return nil, fmt.Errorf("no cgroups are mounted at %s", cgroupMount)
	}
	for i, file := range found {
		found[i] = filepath.Dir(file)
	}
	return found, nil
}

// joinCgroups makes the group in all hierarchies and moves a process into it; 0 is the calling
// process. Its children follow.
func joinCgroups(name string, pid int) error {
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		dir := root
		for part := range strings.SplitSeq(name, "/") {
			dir = filepath.Join(dir, part)
			if err := createCgroup(dir); err != nil {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600); err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	return nil
}

// createCgroup makes a group with the processors of its parent: in version 1 it has none at first.
func createCgroup(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make cgroup: %w", err)
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		values, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
		if err != nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, file), values, 0o600); err != nil {
			return fmt.Errorf("give processors to cgroup: %w", err)
		}
	}
	return nil
}

// removeCgroups removes the group of all hierarchies with everything below it. Groups can be busy
// for a moment after the end of their processes.
func removeCgroups(name string) error {
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		var problems []error
		for _, root := range roots {
			problems = append(problems, removeTree(filepath.Join(root, name)))
		}
		if err = errors.Join(problems...); err == nil || time.Since(begin) > 10*time.Second {
			return err
		}
	}
}

// removeTree removes directories, leaves first. The files of a cgroup go with it.
func removeTree(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("list cgroups: %w", err)
	}
	var problems []error
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := os.Remove(dirs[i]); err != nil && !errors.Is(err, os.ErrNotExist) {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// process is one that runs in a cgroup of a node.
type process struct {
	PID     int
	Program string // base name of its executable as it was started
	Args    []string
}

// processesIn returns the processes of a cgroup and of all below it, as the machine numbers them.
// Zombies are left out.
func processesIn(cgroup string) ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		groups, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cgroup"))
		if err != nil || !strings.Contains(string(groups), ":/"+cgroup+"\n") && !strings.Contains(string(groups), ":/"+cgroup+"/") {
			continue
		}
		command, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err != nil || len(command) == 0 {
			continue
		}
		args := strings.Split(strings.TrimSuffix(string(command), "\x00"), "\x00")
		found = append(found, process{PID: pid, Program: filepath.Base(args[0]), Args: args})
	}
	return found, nil
}
