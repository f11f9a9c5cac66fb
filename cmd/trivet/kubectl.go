package main

import (
	"io"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
)

// pluginName is the name under which kubectl runs this program as `kubectl trivet`.
const pluginName = "kubectl-trivet"

func isPlugin(executable string) bool {
	return strings.TrimSuffix(filepath.Base(executable), ".exe") == pluginName
}

// asPlugin lets all texts of the commands say `kubectl trivet`. It returns a writer that does so
// for errors.
func asPlugin(root *cobra.Command, errors io.Writer) io.Writer {
	var names []string
	for _, command := range root.Commands() {
		names = append(names, regexp.QuoteMeta(command.Name()))
	}
	mentions := regexp.MustCompile(`(kubectl )?\btrivet (` + strings.Join(names, "|") + `)\b`)
	rename := func(text string) string { return mentions.ReplaceAllString(text, "kubectl trivet $2") }
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl trivet"}
	renameTexts(root, rename)
	return renaming{errors, rename}
}

func renameTexts(command *cobra.Command, rename func(string) string) {
	command.Short, command.Long, command.Example = rename(command.Short), rename(command.Long), rename(command.Example)
	for _, child := range command.Commands() {
		renameTexts(child, rename)
	}
}

// renaming writes whole lines with other names of commands.
type renaming struct {
	io.Writer
	rename func(string) string
}

func (w renaming) Write(line []byte) (int, error) {
	if _, err := io.WriteString(w.Writer, w.rename(string(line))); err != nil {
		return 0, err
	}
	return len(line), nil
}
