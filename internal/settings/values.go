package settings

import (
	"regexp"

	"github.com/spf13/pflag"
)

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
