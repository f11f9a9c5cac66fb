// Command scale writes rules of Prometheus whose ranges and `for` are shorter by one factor, so
// that a test need not wait for an hour. Thresholds stay as they are.
//
//	scale --by 20 --out dir rules/*.yaml
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

func main() {
	by := flag.Float64("by", 20, "factor, at least 1")
	out := flag.String("out", "", "directory for the rules; it is made if it is missing")
	flag.Parse()
	if err := run(*by, *out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func run(by float64, out string, paths []string) error {
	if by < 1 || out == "" || len(paths) == 0 {
		return fmt.Errorf("give --by of at least 1, --out and files with rules")
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		scaled, err := scale(content, by)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := os.WriteFile(filepath.Join(out, filepath.Base(path)), scaled, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// scale divides each duration of the rules in a file.
func scale(content []byte, by float64) ([]byte, error) {
	groups, problems := rulefmt.Parse(content, false, model.UTF8Validation)
	if len(problems) > 0 {
		return nil, problems[0]
	}
	for g := range groups.Groups {
		for r := range groups.Groups[g].Rules {
			rule := &groups.Groups[g].Rules[r]
			expression, err := scaleExpression(rule.Expr, by)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", rule.Alert, err)
			}
			rule.Expr = expression
			rule.For = model.Duration(divide(time.Duration(rule.For), by))
			rule.KeepFiringFor = model.Duration(divide(time.Duration(rule.KeepFiringFor), by))
		}
	}
	return yaml.Marshal(groups)
}

// scaleExpression divides ranges, steps and offsets. Numbers stay, also those that stand for
// seconds.
func scaleExpression(text string, by float64) (string, error) {
	expression, err := parser.ParseExpr(text)
	if err != nil {
		return "", err
	}
	parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.MatrixSelector:
			n.Range = divide(n.Range, by)
		case *parser.VectorSelector:
			n.OriginalOffset = divide(n.OriginalOffset, by)
		case *parser.SubqueryExpr:
			n.Range, n.Step, n.OriginalOffset = divide(n.Range, by), divide(n.Step, by), divide(n.OriginalOffset, by)
		}
		return nil
	})
	return expression.String(), nil
}

func divide(d time.Duration, by float64) time.Duration {
	return time.Duration(float64(d) / by).Round(time.Millisecond)
}
