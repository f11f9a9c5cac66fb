package importrules

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Check returns every breach of the rules below root, which holds a go.mod, ordered. An error means
// that the tree could not be read or parsed.
func Check(root string) ([]string, error) {
	sources, err := load(root)
	if err != nil {
		return nil, err
	}
	breaches := checkPackages(sources)
	for _, s := range sources {
		breaches = append(breaches, checkImports(s)...)
		breaches = append(breaches, checkUsages(s)...)
		breaches = append(breaches, checkLoops(s)...)
		breaches = append(breaches, checkInits(s)...)
		breaches = append(breaches, checkSuppressions(s)...)
		breaches = append(breaches, checkComments(s)...)
	}
	heavy, err := checkModule(filepath.Join(root, "go.mod"))
	if err != nil {
		return nil, err
	}
	breaches = append(breaches, heavy...)
	slices.Sort(breaches)
	return breaches, nil
}

var heavyModule = regexp.MustCompile(`^\s*(k8s\.io/(kubernetes|endpointslice|apiserver|component-base)|go\.etcd\.io/etcd/server/\S+|sigs\.k8s\.io/controller-runtime) `)

func checkModule(file string) ([]string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var breaches []string
	for line := range strings.Lines(string(content)) {
		if heavyModule.MatchString(line) {
			breaches = append(breaches, "go.mod: "+strings.TrimSpace(line)+": the root module stays lean; this belongs in a module of its own")
		}
	}
	return breaches, nil
}
