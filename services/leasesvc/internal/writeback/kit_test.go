package writeback_test

import "fmt"

func nodeName(i int) string { return fmt.Sprintf("node-%06d", i) }
