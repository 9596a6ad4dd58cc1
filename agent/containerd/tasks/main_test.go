package tasks

import (
	"bufio"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/testenv"
)

func TestMain(m *testing.M) {
	if log := os.Getenv(shimVariable); log != "" {
		if err := beShim(log); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m, testenv.LeakOptions()...)
}

// shimVariable makes this test binary open its log as a shim does: see beShim.
const shimVariable = "LONGSHORE_TEST_SHIM"

// beShim opens a named pipe for writing, which waits for a reader. It ends with its input.
func beShim(log string) error {
	fmt.Println("opens")
	f, err := os.OpenFile(log, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	fmt.Println("open")
	_, err = bufio.NewReader(os.Stdin).ReadString('\n')
	return err
}
