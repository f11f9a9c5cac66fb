package slices

import (
	"fmt"
	"regexp"
	"strings"
)

func isLabel(text string) bool { return regexp.MustCompile(`^[-a-z0-9]{1,63}$`).MatchString(text) }

// IsPodName says whether it can be the name of a pod.
func IsPodName(text string) bool {
	return len(text) <= 253 && regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`).MatchString(text)
}

// ParseName reads NAMESPACE/NAME, NAME with a namespace, or the API's name as -o name prints it, and returns the API's.
func ParseName(text, within string) (string, error) {
	namespace, name, found := strings.Cut(strings.Replace(strings.TrimPrefix(text, "namespaces/"), "/services/", "/", 1), "/")
	if !found {
		namespace, name = within, text
	}
	switch {
	case namespace == "":
		return "", fmt.Errorf("%q: give NAMESPACE/NAME, or the namespace with -n", text)
	case within != "" && namespace != within:
		return "", fmt.Errorf("%q is not in the namespace of --namespace=%s", text, within)
	case !isLabel(namespace) || !isLabel(name):
		return "", fmt.Errorf("%q is not the name of a Service: NAMESPACE/NAME, of lower-case letters, digits and dashes", text)
	}
	return "namespaces/" + namespace + "/services/" + name, nil
}

// ShortName is a Service's name as people say it: NAMESPACE/NAME.
func ShortName(name string) string {
	return strings.Replace(strings.TrimPrefix(name, "namespaces/"), "/services/", "/", 1)
}
