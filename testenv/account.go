package testenv

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Account reads the numbers of a file of the kernel with lines like "VmRSS:  123 kB", each by its name and without its unit; the
// same name more than once is added up.
func Account(file string) (map[string]float64, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fields := map[string]float64{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		key, rest, _ := strings.Cut(lines.Text(), ":")
		value, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			fields[key] += v
		}
	}
	return fields, lines.Err()
}

// PeakMemory is the most physical memory that a process has had, in bytes.
func PeakMemory(pid int) (int64, error) {
	fields, err := Account(fmt.Sprintf("/proc/%d/status", pid))
	if err == nil && fields["VmHWM"] == 0 {
		err = fmt.Errorf("process %d has ended", pid)
	}
	return int64(fields["VmHWM"]) << 10, err
}
