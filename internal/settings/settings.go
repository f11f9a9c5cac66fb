package settings

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// APIVersion is the version of the configuration file's format.
const APIVersion = "config.trivet.dev/v1"

// environmentPrefix begins the variable that stands in for a flag: --etcd-endpoints is
// TRIVET_ETCD_ENDPOINTS.
const environmentPrefix = "TRIVET_"

// file is the configuration file. Its settings have the names of the flags.
type file struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Settings   map[string]any `json:"settings"`
}

// Apply sets flags from the command line, the environment and the file of --config, in this order
// of precedence. It returns every mistake, because parsing continues after one. Without the flag
// "config" there is no file.
func Apply(fs *pflag.FlagSet, args []string, environ []string, kind string) []error {
	problems := applyArguments(fs, args)
	problems = append(problems, applyEnvironment(fs, environ)...)
	if config := fs.Lookup("config"); config != nil && config.Value.String() != "" {
		problems = append(problems, applyFile(fs, config.Value.String(), kind)...)
	}
	return problems
}

// applyArguments sets flags one by one, because pflag's Parse stops at the first mistake.
func applyArguments(fs *pflag.FlagSet, args []string) []error {
	var problems []error
	for i := 0; i < len(args); i++ {
		name, value, hasValue := strings.Cut(strings.TrimPrefix(args[i], "--"), "=")
		if !strings.HasPrefix(args[i], "--") || name == "" {
			problems = append(problems, fmt.Errorf("argument %q: only flags of the form --name=value are accepted", args[i]))
			continue
		}
		flag := fs.Lookup(name)
		if flag == nil {
			problems = append(problems, fmt.Errorf("--%s: unknown flag", name))
			i += skippedValue(args[i+1:], hasValue)
			continue
		}
		if !hasValue && flag.NoOptDefVal != "" {
			value, hasValue = flag.NoOptDefVal, true
		}
		if !hasValue {
			if i++; i >= len(args) {
				problems = append(problems, fmt.Errorf("--%s: the value is missing", name))
				continue
			}
			value = args[i]
		}
		problems = appendSet(problems, fs, flag, value, "--"+name)
	}
	return problems
}

// skippedValue returns how many following arguments are the value of an unknown flag, so that the
// value is not a second mistake.
func skippedValue(rest []string, hasValue bool) int {
	if hasValue || len(rest) == 0 || strings.HasPrefix(rest[0], "-") {
		return 0
	}
	return 1
}

func applyEnvironment(fs *pflag.FlagSet, environ []string) []error {
	var problems []error
	for _, entry := range slices.Sorted(slices.Values(environ)) {
		key, value, _ := strings.Cut(entry, "=")
		name, ours := strings.CutPrefix(key, environmentPrefix)
		if !ours {
			continue
		}
		flag := fs.Lookup(flagName(name))
		if flag == nil || flag.Changed {
			continue // UnknownVariables reports a variable that is no flag
		}
		problems = appendSet(problems, fs, flag, value, key)
	}
	return problems
}

// serviceVariable matches the rest of a variable that Kubernetes sets in each Pod for a Service
// whose name begins with "trivet-".
var serviceVariable = regexp.MustCompile(`(^|_)(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// UnknownVariables returns the TRIVET_ variables that are no flag, ordered. They are no mistake
// that ends the process: a variable may belong to another Trivet process of the Pod.
func UnknownVariables(fs *pflag.FlagSet, environ []string) []string {
	var unknown []string
	for _, entry := range environ {
		key, _, _ := strings.Cut(entry, "=")
		name, ours := strings.CutPrefix(key, environmentPrefix)
		if ours && fs.Lookup(flagName(name)) == nil && !serviceVariable.MatchString(name) {
			unknown = append(unknown, key)
		}
	}
	slices.Sort(unknown)
	return unknown
}

// flagName returns the flag for which a variable stands in, without its prefix.
func flagName(variable string) string {
	return strings.ReplaceAll(strings.ToLower(variable), "_", "-")
}

func applyFile(fs *pflag.FlagSet, path, kind string) []error {
	data, err := os.ReadFile(path)
	if err != nil {
		return []error{fmt.Errorf("--config: %w", err)}
	}
	var content file
	if err := yaml.UnmarshalStrict(data, &content, numbersAsWritten); err != nil {
		return []error{fmt.Errorf("--config %s: %w", path, err)}
	}
	var problems []error
	if content.APIVersion != APIVersion || content.Kind != kind {
		problems = append(problems, fmt.Errorf("--config %s: apiVersion %q, kind %q: need %q and %q",
			path, content.APIVersion, content.Kind, APIVersion, kind))
	}
	for _, name := range sortedKeys(content.Settings) {
		source := fmt.Sprintf("--config %s: settings.%s", path, name)
		flag := fs.Lookup(name)
		if flag == nil || name == "config" {
			problems = append(problems, fmt.Errorf("%s: unknown setting", source))
			continue
		}
		value, err := settingText(content.Settings[name], flag.Value)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", source, err))
			continue
		}
		if !flag.Changed {
			problems = appendSet(problems, fs, flag, value, source)
		}
	}
	return problems
}

// numbersAsWritten keeps 1048576 as written; as a float it would become 1.048576e+06, which no
// integer flag accepts.
func numbersAsWritten(decoder *json.Decoder) *json.Decoder {
	decoder.UseNumber()
	return decoder
}

func sortedKeys(settings map[string]any) []string {
	names := make([]string, 0, len(settings))
	for name := range settings {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// StructuredType is the pflag Type of a flag whose value is JSON on the command line and YAML in
// the configuration file.
const StructuredType = "JSON"

// settingText converts a YAML value to the text of a flag: scalars unchanged, lists joined by
// commas, structures as JSON.
func settingText(value any, flag pflag.Value) (string, error) {
	if _, isText := value.(string); flag.Type() == StructuredType && !isText {
		text, err := json.Marshal(value)
		return string(text), err
	}
	switch v := value.(type) {
	case string, bool, json.Number:
		return fmt.Sprint(v), nil
	case []any:
		parts := make([]string, len(v))
		for i, item := range v {
			text, err := settingText(item, flag)
			if err != nil {
				return "", err
			}
			parts[i] = text
		}
		return strings.Join(parts, ","), nil
	default:
		return "", errors.New("need a string, number, boolean or a list of these")
	}
}

func appendSet(problems []error, fs *pflag.FlagSet, flag *pflag.Flag, value, source string) []error {
	before := flag.Value.String()
	if err := fs.Set(flag.Name, value); err != nil {
		if flag.Value.Type() == StructuredType {
			var invalid *pflag.InvalidValueError
			if errors.As(err, &invalid) {
				err = invalid.Unwrap() // omits the whole value
			}
			return append(problems, fmt.Errorf("%s: %w", source, err))
		}
		if _, isList := flag.Value.(pflag.SliceValue); !isList {
			_ = flag.Value.Set(before) // pflag has set zero, which would be a second mistake
		}
		return append(problems, fmt.Errorf("%s: %q is not a valid %s", source, value, flag.Value.Type()))
	}
	return problems
}

// userInfo is the user and password of a URL.
var userInfo = regexp.MustCompile(`://[^/\s,]*@`)

// Values returns the values of all flags by name, without passwords of URLs. No flag of a server
// has a secret itself: files have them.
func Values(fs *pflag.FlagSet) map[string]string {
	values := map[string]string{}
	fs.VisitAll(func(flag *pflag.Flag) {
		values[flag.Name] = userInfo.ReplaceAllString(flag.Value.String(), "://REDACTED@")
	})
	return values
}
