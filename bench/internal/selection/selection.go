// Package selection chooses the parts of a benchmark that its -only flag names.
package selection

import (
	"fmt"
	"slices"
	"strings"
)

// Names returns the names of all parts in order.
func Names[T any](all []T, name func(T) string) []string {
	names := make([]string, len(all))
	for i, part := range all {
		names[i] = name(part)
	}
	return names
}

// Choose returns the parts that only names, separated by commas, in the order of all. It returns
// all parts if only is empty. Errors call a part by noun.
func Choose[T any](all []T, name func(T) string, noun, only string) ([]T, error) {
	if only == "" {
		return all, nil
	}
	known, wanted := Names(all, name), strings.Split(only, ",")
	for _, one := range wanted {
		if !slices.Contains(known, one) {
			return nil, fmt.Errorf("no %s is named %q: there are %s", noun, one, strings.Join(known, ", "))
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(part T) bool { return !slices.Contains(wanted, name(part)) }), nil
}
